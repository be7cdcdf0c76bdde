package main

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestGuestMeasurements runs each measurement for a moment on the kernel's rxe, in
// the guest of TestRig of test/rig. Short: two of them.
func TestGuestMeasurements(t *testing.T) {
	if os.Getenv("VERBENA_GUEST") == "" {
		t.Skip("runs in the guest of TestRig of test/rig")
	}
	for _, m := range measurements {
		if testing.Short() && m.name != "cores" && m.name != "dials" {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			out, err := exec.Command("/samples/bench", m.name, "-d", "rxe0", "-t", "20ms", "-connections", "20", "-rounds", "1").CombinedOutput()
			require.NoError(t, err, "%s", out)
			assert.Contains(t, string(out), m.name)
		})
	}
}
