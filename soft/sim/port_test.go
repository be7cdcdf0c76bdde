package sim

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
)

// listen opens a socket of a host that counts the calls of its receiver.
func listen(t require.TestingT, h *Host, calls *int) *port {
	n := &hostNetwork{turns: turns{h}, sockets: make(map[*link.Socket]*port)}
	socket, err := n.Listen(link.Config{Addr: netip.AddrPortFrom(h.Addr(), 4791)})
	require.NoError(t, err)
	p := n.sockets[socket]
	n.Serve(socket, func() time.Time {
		*calls++
		p.Receive()
		return time.Time{}
	})
	return p
}

// A host without the socket refuses a packet. The sender learns of it unless it is paused or
// the way back is cut.
func TestRefused(t *testing.T) {
	Check(t, 2, func(s *Sim) {
		a, b := s.Host("a"), s.Host("b")
		calls := 0
		p := listen(s, a, &calls)
		refused := func() int {
			p.Send(netip.AddrPortFrom(b.Addr(), 4791), link.Header{}, make([]byte, 100))
			s.Run(time.Millisecond)
			return len(p.Unreachable())
		}
		require.Equal(s, 1, refused())
		require.Equal(s, 1, calls)
		a.Pause()
		require.Zero(s, refused())
		require.Equal(s, 1, calls)
		a.Resume()
		s.Run(time.Millisecond)
		require.Len(s, p.Unreachable(), 1)
		require.Equal(s, 2, calls)
		s.Cut(b, a)
		require.Zero(s, refused())
		s.Heal()
		require.Equal(s, 1, refused())
	})
}

// The MTU of a link counts the IP packet, and its rate what Ethernet adds too.
func TestLinkMTU(t *testing.T) {
	Check(t, 2, func(s *Sim) {
		a, b := s.Host("a"), s.Host("b")
		var sent, received int
		from, to := listen(s, a, &sent), listen(s, b, &received)
		s.Link(a, b).Set(LinkConfig{MTU: 1500, Rate: 1e6})
		for _, size := range []int{1472, 1473} {
			from.Send(to.addr, link.Header{}, make([]byte, size))
		}
		s.Run(1537 * time.Microsecond)
		require.Zero(s, received)
		s.Run(time.Millisecond)
		require.Equal(s, 1, received)
		require.Equal(s, uint64(1), s.Link(a, b).Counts().TooLong)
	})
}
