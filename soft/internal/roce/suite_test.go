//go:build unix

package roce

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/test/cmtest"
)

// The tests that all implementations of the connection manager pass.
func TestConnectionManagerSeam(t *testing.T) {
	for _, address := range []string{"127.0.0.1", "::1"} {
		t.Run(address, func(t *testing.T) {
			var sides [2]cmtest.Side
			for i := range sides {
				d, err := Open(Config{Name: "soft-lo", Addresses: addresses(address)})
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, d.Close()) })
				sides[i] = cmtest.SideOf(t, d, address == "127.0.0.1", false)
			}
			// The first has UDP port 4791, unless another process has it.
			active, passive := sides[0], sides[1]
			if address == "::1" {
				active, passive = passive, active
			}
			cmtest.Run(t, active, passive, false)
		})
	}
}
