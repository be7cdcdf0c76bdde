package sim

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
)

// A packet to a group takes each link once, and is copied where the ways part.
func TestGroupsShareLinks(t *testing.T) {
	Check(t, 3, func(s *Sim) {
		racks, switches := s.Racks("rack", 3, LinkConfig{Latency: time.Microsecond}, LinkConfig{Latency: time.Microsecond})
		group := netip.MustParseAddrPort("239.1.1.1:4791")
		sender, received := racks[0][0], map[string]int{}
		var out *port
		for _, h := range append(racks[0], racks[1]...) {
			addr := netip.AddrPortFrom(h.Addr(), 4791)
			p := &port{host: h, addr: addr, source: addr, groups: map[netip.AddrPort]struct{}{}}
			p.work = func() time.Time {
				for _, d := range p.Receive() {
					require.Equal(s, group.Addr(), d.Group)
					received[fmt.Sprint(h.name, ": ", string(d.Data))]++
				}
				return time.Time{}
			}
			if h != racks[1][2] {
				require.NoError(s, p.Join(group))
			}
			h.ports[addr] = p
			if h == sender {
				out = p
			}
		}
		s.Cut(sender, racks[0][2])
		out.Send(group, link.Header{}, []byte("hello"))
		s.Run(time.Millisecond)
		require.Equal(s, map[string]int{"rack0-0: hello": 1, "rack0-1: hello": 1, "rack1-0: hello": 1, "rack1-1: hello": 1}, received)
		for l, n := range map[*Link]uint64{
			s.Link(sender, switches[0]): 1, s.Link(switches[0], switches[1]): 1, s.Link(switches[1], racks[1][0]): 1,
			s.Link(switches[0], racks[0][2]): 0, s.Link(switches[1], racks[1][2]): 0,
		} {
			require.Equal(s, n, l.Counts().Sent, "%v", l)
		}
	})
}
