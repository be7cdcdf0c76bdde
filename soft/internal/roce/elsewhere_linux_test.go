package roce

import (
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// A dial from a device on one interface to a listener on another of the same machine says where
// the listener is.
func TestDialFromAnotherInterface(t *testing.T) {
	outer := interfaceAddress(t)
	loopback := netip.MustParseAddr("127.0.0.1")
	for _, c := range []struct{ listener, dialler netip.Addr }{{outer, loopback}, {loopback, outer}} {
		t.Run(c.listener.String(), func(t *testing.T) {
			passive := openCMSide(t, Config{Addresses: []netip.AddrPort{netip.AddrPortFrom(c.listener, 0)}})
			active := openCMSide(t, Config{Addresses: []netip.AddrPort{netip.AddrPortFrom(c.dialler, 0)}})
			_, there := passive.listen(verbs.RC)
			there.UDPPort = 0

			_, err := active.cm.Dial(there)
			require.ErrorIs(t, err, verbs.ErrNoRoute)
			assert.ErrorContains(t, err, c.listener.String()+" belongs to another interface of this machine")

			id, err := active.cm.Dial(verbs.CMDial{Addr: netip.AddrPortFrom(c.dialler, there.Addr.Port())})
			require.NoError(t, err)
			if !c.dialler.IsLoopback() { // every listener on a loopback address is known
				active.next(verbs.CMResolved)
				active.move(id, verbs.QPInitialized)
				require.NoError(t, id.Connect(active.param("")))
			}
			err = active.next(verbs.CMFailed).Err
			require.ErrorIs(t, err, verbs.ErrNotListening)
			assert.ErrorContains(t, err, "a program on this machine listens at "+there.Addr.String())
			require.NoError(t, id.Close())
		})
	}
}

// interfaceAddress returns an IPv4 address of this machine that is not loopback.
func interfaceAddress(t *testing.T) netip.Addr {
	list, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && p.Addr().IsGlobalUnicast() {
			return p.Addr()
		}
	}
	t.Skip("this machine has no network")
	return netip.Addr{}
}
