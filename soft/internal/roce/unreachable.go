package roce

import (
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/verbs"
)

// unreachable holds peers that the network reports as not listening at their port: a packet to
// the socket of a program that has ended returns an ICMP message. Any host on the path can
// forge one. So a report only makes queue pairs probe their peer, and reports are acted on at
// a bounded rate.
type unreachable struct {
	peers     [maxUnreachable]unreachablePeer
	n         int
	nextProbe time.Duration
	reports   uint64
}

// unreachablePeer is a peer, the endpoint that sends to it, and when it was last reported.
type unreachablePeer struct {
	endpoint *endpoint
	addr     netip.AddrPort
	reported time.Duration
}

const (
	// maxUnreachable bounds the waiting reports. Further ones are dropped; they come again
	// with the next packet that is refused.
	maxUnreachable = 16
	// unreachableInterval is the least time between two searches for queue pairs with a
	// reported peer.
	unreachableInterval = 50 * time.Millisecond
)

// note records peers that packets from an endpoint did not reach.
func (u *unreachable) note(e *endpoint, peers []netip.AddrPort, now time.Duration) {
	for _, addr := range peers {
		u.reports++
		u.add(unreachablePeer{e, addr, now})
	}
}

func (u *unreachable) add(peer unreachablePeer) {
	for i := range u.peers[:u.n] {
		if known := &u.peers[i]; known.endpoint == peer.endpoint && known.addr == peer.addr {
			known.reported = peer.reported
			return
		}
	}
	if u.n < len(u.peers) {
		u.peers[u.n] = peer
		u.n++
	}
}

// probeUnreachable makes queue pairs probe their peer if it was reported.
func (s *shard) probeUnreachable(now time.Duration) {
	u := &s.unreachable
	if now < u.nextProbe {
		s.noteDeadline(u.nextProbe)
		return
	}
	u.nextProbe = now + unreachableInterval
	for _, q := range sortedPairs(s.device.queuePairs) {
		if q.shard != s || q.path == nil || q.init.Type != verbs.RC {
			continue
		}
		for _, peer := range u.peers[:u.n] {
			if q.path.leadsTo(peer.endpoint, peer.addr) {
				q.transport.PeerUnreachable(now)
				s.activate(q)
				break
			}
		}
	}
	if services := s.device.services; s == s.device.main && services != nil {
		for _, peer := range u.peers[:u.n] {
			services.PeerUnreachable(peer.endpoint.index, peer.addr, peer.reported, now)
		}
	}
	clear(u.peers[:u.n])
	u.n = 0
}
