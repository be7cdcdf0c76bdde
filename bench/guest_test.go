package main

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestGuestMeasurements runs each measurement for a moment on the kernel's rxe, in
// the guest of TestRig of test/rig. Short: two of them, with one process and with two.
func TestGuestMeasurements(t *testing.T) {
	if os.Getenv("VERBENA_GUEST") == "" {
		t.Skip("runs in the guest of TestRig of test/rig")
	}
	for _, m := range measurements {
		if testing.Short() && m.name != "write_rate" && m.name != "send_bw" {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			out, err := exec.Command("/samples/bench", "-d", "rxe0", "-run", m.name, "-t", "20ms", "-size", "65536", "-connections", "20", "-rounds", "1", "-window", "16", "-mtu", "4096").CombinedOutput()
			require.NoError(t, err, "%s", out)
			assert.Contains(t, string(out), m.name)
		})
	}
}
