package main

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/internal/process"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// build builds this program.
func build(t *testing.T, flags ...string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "bench")
	_, err := process.Run(t.Context(), process.Program{Args: append(append([]string{"go", "build", "-ldflags", "-s -w", "-o", bin}, flags...), ".")})
	require.NoError(t, err)
	return bin
}

// TestMeasurements runs each measurement for a moment: the figures mean nothing, but both processes
// have to come to an end, and well. Short: not that which repeats others for several settings.
func TestMeasurements(t *testing.T) {
	bin := build(t)
	for name, shows := range map[string]string{"scale": "fairness (Jain's index)", "srd": "1 peers, round trip"} {
		if testing.Short() && name == "scale" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			out, err := process.Run(t.Context(), process.Program{Args: []string{bin, name, "-t", "20ms", "-connections", "30", "-rounds", "1", "-peer-prefix", "env PEER=1"}})
			require.NoError(t, err)
			assert.Contains(t, out, shows)
		})
	}
	out, err := process.Run(t.Context(), process.Program{Args: []string{bin, "-version"}})
	require.NoError(t, err)
	assert.Regexp(t, `^bench (devel|v\d\S*) \(.*go\S+ \w+/\w+\)\n$`, out)
	for name, args := range map[string][]string{
		"nothing":             {},
		"unknown measurement": {"nothing"},
		"unknown device":      {"srd", "-d", "nothing0"},
		"unknown prefix":      {"scale", "-peer-prefix", "nothing-of-this-name"},
		"no connections":      {"scale", "-connections", "0"},
		"arguments":           {"srd", "more"},
		"compare":             {"compare"},
		"links":               {"links", "-rounds", "0"},
		"overhead":            {"overhead", "-rounds", "0"},
		"peers":               {"peers", "-rounds", "0"},
		"plot":                {"plot"},
		"stream":              {"stream"},
		"sim":                 {"sim", "-only", "nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := process.Run(t.Context(), process.Program{Args: append([]string{bin}, args...)})
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
			assert.ErrorContains(t, err, "bench:")
		})
	}
}
