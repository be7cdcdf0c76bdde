package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/test/rig"
)

// Every case runs for a moment, over the null library and over the software device. Tasks
// allocate nothing.
func TestOverhead(t *testing.T) {
	require.NoError(t, rig.ReadSources())
	if exec.Command("pkg-config", "--exists", "libibverbs", "librdmacm").Run() != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("the headers of libibverbs and librdmacm are not installed (make setup)")
		}
		t.Skip("the headers of libibverbs and librdmacm are not installed (make setup)")
	}
	bin := filepath.Join(t.TempDir(), "bench")
	out, err := exec.Command("go", "build", "-tags", "verbs", "-ldflags", "-s -w", "-o", bin, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	cmd := exec.Command(bin, "overhead", "-t", "2ms", "-rounds", "1", "-tsv")
	cmd.Stderr = os.Stderr
	out, err = cmd.Output()
	require.NoError(t, err)
	cases := map[string]int{}
	for line := range strings.Lines(string(out)) {
		columns := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		require.Len(t, columns, 4, line)
		cases[columns[0]]++
		if strings.HasPrefix(columns[1], "rdma write/") || strings.HasPrefix(columns[1], "rdma write, allocated") {
			allocations, err := strconv.ParseFloat(columns[3], 64)
			require.NoError(t, err, line)
			assert.Less(t, allocations, 0.5, line) // other goroutines allocate now and then
		}
	}
	assert.Greater(t, cases["null0"], cases["soft-lo"])
	assert.Greater(t, cases["soft-lo"], 15)
	out, err = exec.Command(bin, "overhead", "-t", "1ms", "-rounds", "1", "-only", "empty poll", "-d", "nothing0").CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(out), "nothing0")
	out, err = exec.Command(bin, "overhead", "-t", "1ms", "-rounds", "1", "-only", "nothing of this name").CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(out), "no case contains")
}
