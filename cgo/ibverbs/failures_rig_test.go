//go:build linux && cgo && verbs

package ibverbs_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/test/rig"
)

// TestRigFailures runs TestGuestFailures in a guest of its own, and replaces the table of
// the file that VERBENA_FAILURES_FILE names, for make failures.
func TestRigFailures(t *testing.T) {
	file := os.Getenv("VERBENA_FAILURES_FILE")
	if file == "" {
		t.Skip("make failures runs it")
	}
	rig.Require(t)
	table := tableOf(t, "TestGuestFailures", 15*time.Minute)
	replaceTable(t, file, "| what happens |", table)
}

// tableOf runs a test in a guest of its own and returns the table that it prints.
func tableOf(t *testing.T, test string, timeout time.Duration) string {
	output := rig.Run(t, rig.Job{
		Files:   map[string]string{"/bin/ibverbs.test": rig.BuildTest(t, ".", "-tags", "verbs", "-vet=off", "-ldflags", "-s -w")},
		Script:  fmt.Sprintf("VERBENA_GUEST=1 ibverbs.test -test.v -test.run '^%s$' -test.timeout %v", test, timeout),
		MTU:     4500,
		Timeout: timeout,
	})
	_, table, found := strings.Cut(output, tableBegin+"\n")
	require.True(t, found)
	table, _, found = strings.Cut(table, tableEnd)
	require.True(t, found)
	return table
}

// replaceTable replaces the table of a file that begins so.
func replaceTable(t *testing.T, file, begin, table string) {
	page, err := os.ReadFile(file)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(page), begin)
	require.True(t, found, "%s has no table", file)
	_, after, found := strings.Cut(rest, "\n\n")
	require.True(t, found, "%s has nothing after the table", file)
	require.NoError(t, os.WriteFile(file, []byte(before+table+"\n"+after), 0o644))
}
