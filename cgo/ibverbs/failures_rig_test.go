//go:build linux && cgo && verbs

package ibverbs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/test/rig"
)

// TestRigFailures runs TestGuestFailures in a guest of its own, and writes its table to the
// file that VERBENA_FAILURES_FILE names, for make failures.
func TestRigFailures(t *testing.T) {
	file := os.Getenv("VERBENA_FAILURES_FILE")
	if file == "" {
		t.Skip("make failures runs it")
	}
	rig.Require(t)
	writeTable(t, file, tableOf(t, "TestGuestFailures", 15*time.Minute))
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

// writeTable writes a table to a file, and makes the file's folder.
func writeTable(t *testing.T, file, table string) {
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file, []byte(table), 0o644))
}
