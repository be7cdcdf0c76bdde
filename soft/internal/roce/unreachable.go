package roce

import (
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/gsi"
	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
)

// unreachable holds reports that nothing listens at a peer's port, or that its host cannot be reached.
// A packet to the socket of a program that has ended returns an ICMP message. Any host on the path can
// forge one. So a report only makes queue pairs probe their peer, ends a handshake only if it quotes that
// handshake's message, and reports are acted on at a bounded rate.
type unreachable struct {
	reports   [maxUnreachable]refusal
	n         int
	nextProbe time.Duration
	total     uint64
}

// refusal is a peer and the endpoint that sends to it. The transaction ID is that of the
// management datagram that was refused, or zero.
type refusal struct {
	endpoint    *endpoint
	peer        netip.AddrPort
	errno       syscall.Errno // that of link.Refusal
	transaction uint64
}

const (
	// maxUnreachable bounds the waiting reports. Further ones are dropped; they come again
	// with the next packet that is refused.
	maxUnreachable = 16
	// unreachableInterval is the least time between two searches for queue pairs with a
	// reported peer.
	unreachableInterval = 50 * time.Millisecond
)

// note records reports about packets from an endpoint.
func (u *unreachable) note(e *endpoint, reports []link.Refusal) {
	for i := range reports {
		u.total++
		u.add(e, &reports[i])
	}
}

func (u *unreachable) add(e *endpoint, report *link.Refusal) {
	r := refusal{e, report.Peer, report.Errno, gsi.TransactionID(report.Packet[:])}
	if !slices.Contains(u.reports[:u.n], r) && u.n < len(u.reports) {
		u.reports[u.n] = r
		u.n++
	}
}

// probeUnreachable makes queue pairs probe their peer if it was reported, and ends handshakes.
func (s *shard) probeUnreachable(now time.Duration) {
	u := &s.mu.unreachable
	if now < u.nextProbe {
		s.noteDeadline(u.nextProbe)
		return
	}
	u.nextProbe = now + unreachableInterval
	for _, q := range sortedPairs(s.device.mu.queuePairs) {
		if q.shard != s || q.path == nil || !transport.Reliable(q.init.Type) {
			continue
		}
		for i := range u.reports[:u.n] {
			if r := &u.reports[i]; r.errno == syscall.ECONNREFUSED && q.path.leadsTo(r.endpoint, r.peer) {
				q.transport.PeerUnreachable(now)
				s.activate(q)
				break
			}
		}
	}
	if services := s.device.mu.services; s == s.device.main.shard && services != nil {
		for _, r := range u.reports[:u.n] {
			if r.transaction != 0 {
				services.PeerUnreachable(r.endpoint.index, r.peer, r.transaction, r.errno, now)
			}
		}
	}
	clear(u.reports[:u.n])
	u.n = 0
}
