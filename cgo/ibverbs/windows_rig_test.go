//go:build linux && cgo && verbs

package ibverbs_test

import (
	"os"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/test/rig"
)

// TestRigWindows runs TestGuestWindows in a guest of its own, and writes its table to the
// file that VERBENA_WINDOWS_FILE names, for make windows.
func TestRigWindows(t *testing.T) {
	file := os.Getenv("VERBENA_WINDOWS_FILE")
	if file == "" {
		t.Skip("make windows runs it")
	}
	rig.Require(t)
	writeTable(t, file, tableOf(t, "TestGuestWindows", 15*time.Minute))
}
