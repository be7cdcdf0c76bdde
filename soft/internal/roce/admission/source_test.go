package admission

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

type anyPacket struct{}

func (anyPacket) Plausible(*wire.Packet, int32) bool { return true }

// A peer is like this device if its port was named, or if it sends from a port of such devices.
func TestLikeOurs(t *testing.T) {
	entry := newFixture().entry
	p := &wire.Packet{PKey: 0xffff}
	for port, like := range map[uint16]bool{FirstEntropyPort: false, FirstSendPort - 1: false, FirstSendPort: true, 65535: true} {
		from := netip.AddrPortFrom(netip.MustParseAddr("192.0.2.12"), port)
		s := entry.Connection(from.Addr(), 0, anyPacket{})
		require.False(t, s.LikeOurs(), "nothing has come")
		_, verdict := s.Admit(entry, 0, from, p, 1)
		require.Equal(t, Admitted, verdict)
		require.False(t, s.LikeOurs(), "its checksum is not known yet")
		require.Equal(t, Admitted, s.Learn(from, p, 1))
		require.Equal(t, like, s.LikeOurs(), port)
		_, verdict = s.Admit(entry, 0, netip.AddrPortFrom(from.Addr(), port-1), p, 1+RelearnTime)
		require.Equal(t, Admitted, verdict)
		require.False(t, s.LikeOurs(), "another port is being learned")

		s = entry.Connection(from.Addr(), port, anyPacket{})
		require.True(t, s.LikeOurs(), "the port was named")
	}
	s := entry.Connection(netip.MustParseAddr("192.0.2.12"), 0, nil)
	require.False(t, s.LikeOurs(), "no port is learned for an unreliable connection")
}
