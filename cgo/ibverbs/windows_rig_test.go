//go:build linux && cgo && verbs

package ibverbs_test

import (
	"os"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/test/rig"
)

// TestRigWindows runs TestGuestWindows in a guest of its own, and replaces the table of
// the file that VERBENA_WINDOWS_FILE names, for make windows.
func TestRigWindows(t *testing.T) {
	file := os.Getenv("VERBENA_WINDOWS_FILE")
	if file == "" {
		t.Skip("make windows runs it")
	}
	rig.Require(t)
	replaceTable(t, file, "| what is done |", tableOf(t, "TestGuestWindows", 15*time.Minute))
}
