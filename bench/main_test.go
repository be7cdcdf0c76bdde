package main

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/test/rig"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestMeasurements runs each measurement for a moment: the figures mean nothing,
// but both processes have to come to an end, and well. Short: not those that repeat
// others for each of several settings.
func TestMeasurements(t *testing.T) {
	require.NoError(t, rig.ReadSources())
	bin := filepath.Join(t.TempDir(), "bench")
	out, err := exec.Command("go", "build", "-ldflags", "-s -w", "-o", bin, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, m := range measurements {
		if testing.Short() && (m.name == "connections" || m.name == "scale") {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			out, err := exec.Command(bin, m.name, "-t", "20ms", "-connections", "30", "-rounds", "1", "-peer-prefix", "env PEER=1").CombinedOutput()
			require.NoError(t, err, "%s", out)
			assert.Contains(t, string(out), m.name)
		})
	}
	for name, args := range map[string][]string{
		"rsocket":       {"rsocket", "-t", "20ms", "-rounds", "1", "-only", "loopback 4 KiB"},
		"rsocket-scale": {"rsocket-scale", "-t", "20ms", "-rounds", "1", "-connections", "20", "-busy", "10", "-beside", "5", "-idle", "50ms"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := exec.Command(bin, args...).CombinedOutput()
			require.NoError(t, err, "%s", out)
			assert.Contains(t, string(out), "shared memory")
		})
	}
	out, err = exec.Command(bin, "-version").Output()
	require.NoError(t, err)
	assert.Regexp(t, `^bench (devel|v\d\S*) \(.*go\S+ \w+/\w+\)\n$`, string(out))
	for name, args := range map[string][]string{
		"nothing":             {},
		"unknown measurement": {"nothing"},
		"unknown device":      {"cores", "-d", "nothing0"},
		"unknown prefix":      {"scale", "-peer-prefix", "nothing-of-this-name"},
		"no connections":      {"all", "-connections", "0"},
		"arguments":           {"cores", "more"},
		"incast":              {"incast", "-size", "0"},
		"compare":             {"compare"},
		"overhead":            {"overhead", "-rounds", "0"},
		"perftest":            {"perftest", "-run", "nothing"},
		"scp":                 {"scp", "-rounds", "0"},
		"rsocket":             {"rsocket", "-rounds", "0"},
		"sim":                 {"sim", "-only", "nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := exec.Command(bin, args...).CombinedOutput()
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
			assert.Contains(t, string(out), "bench:")
		})
	}
}
