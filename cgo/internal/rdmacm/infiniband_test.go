//go:build linux && cgo && verbs

package rdmacm

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/verbena-rdma/verbena/verbs"
)

// Addresses of IPoIB are not in the GID table: on InfiniBand the kernel says whose they are.
func TestAddressOfIPoIB(t *testing.T) {
	elsewhere := netip.MustParseAddr("192.0.2.1")
	for layer, want := range map[verbs.LinkLayer]error{verbs.LinkEthernet: verbs.ErrInvalid, verbs.LinkInfiniBand: nil} {
		m := &manager{dev: fakeDevice{layer: layer}, limits: verbs.DeviceAttr{Ports: 1}}
		assert.NoError(t, m.checkLocal(ownAddr))
		assert.ErrorIs(t, m.checkLocal(elsewhere), want, "%v", layer)
	}
}
