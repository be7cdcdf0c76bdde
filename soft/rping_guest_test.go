//go:build linux && cgo && verbs

package soft_test

import (
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/cmtest"
	"github.com/verbena-rdma/verbena/internal/rig"
	"github.com/verbena-rdma/verbena/soft"
)

// The kernel's connection manager, by rping, at either end. Short: each family with
// one of the sizes.
func TestGuestRping(t *testing.T) {
	if os.Getenv("VERBENA_GUEST") == "" {
		t.Skip("runs in the guest of TestRig of internal/rig")
	}
	var d *soft.Device
	require.NoError(t, rig.InNamespace("s", func() (err error) {
		d, err = soft.Open(soft.Config{Interface: "v1"})
		return err
	}))
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	for i, family := range []struct{ name, rxe string }{{"IPv4", "10.0.0.1"}, {"IPv6", "fd00::1"}} {
		for j, size := range []int{26, 65_535} {
			if i != j && testing.Short() {
				continue
			}
			t.Run(fmt.Sprintf("%s, %d bytes", family.name, size), func(t *testing.T) {
				cmtest.RunRping(t, cmtest.SideOf(t, d, family.name == "IPv4", false), netip.MustParseAddr(family.rxe), size, 5)
			})
		}
	}
}
