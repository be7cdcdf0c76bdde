//go:build linux && cgo && verbs

package crosscheck

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/cgo/ibverbs"
)

// TestGuestWorkloads compares simulated devices with the kernel's rxe, in the guest of TestRig of
// test/rig.
func TestGuestWorkloads(t *testing.T) {
	if os.Getenv("VERBENA_GUEST") == "" {
		t.Skip("runs in the guest of TestRig of test/rig")
	}
	dev, err := ibverbs.Driver{}.Open("rxe0")
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	compare(t, dev, 40, 10)
}
