package main

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/process"
	"github.com/verbena-rdma/verbena/test/netns"
)

// Every case runs for a moment, over the null library and over the software device. Tasks
// allocate nothing.
func TestOverhead(t *testing.T) {
	netns.Need(t, exec.Command("pkg-config", "--exists", "libibverbs", "librdmacm").Run(), "the test needs the headers of libibverbs and librdmacm (make setup)")
	bin := build(t, "-tags", "verbs")
	run := func(args ...string) (string, error) {
		return process.Run(t.Context(), process.Program{Args: append([]string{bin, "overhead"}, args...)})
	}
	out, err := run("-t", "2ms", "-rounds", "1", "-tsv")
	require.NoError(t, err)
	cases := map[string]int{}
	for line := range strings.Lines(out) {
		columns := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		cases[columns[0]]++
		if columns[0] == "C" {
			continue
		}
		require.Len(t, columns, 4, line)
		if strings.HasPrefix(columns[1], "rdma write/") || strings.HasPrefix(columns[1], "rdma write, allocated") {
			allocations, err := strconv.ParseFloat(columns[3], 64)
			require.NoError(t, err, line)
			assert.Less(t, allocations, 0.5, line) // other goroutines allocate now and then
		}
	}
	assert.Equal(t, cases["null0"], cases["soft-lo"])
	assert.Greater(t, cases["soft-lo"], 15)
	assert.Positive(t, cases["C"])
	out, err = run("-t", "1ms", "-rounds", "2", "-only", "write/1")
	require.NoError(t, err)
	assert.Regexp(t, `(?m)^rdma write/1, ns +\d.*\(.*\) +\d.*\(.*\) +\d.*\(.*\)$`, out)
	_, err = run("-t", "1ms", "-rounds", "1", "-only", "empty poll", "-d", "nothing0")
	require.ErrorContains(t, err, "nothing0")
	_, err = run("-t", "1ms", "-rounds", "1", "-only", "nothing of this name")
	require.ErrorContains(t, err, "measurements failed")
}
