package roce

import (
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// The two bits of the traffic class that are the network's to report congestion by (RFC
// 3168).
const (
	ecnMask               = 3
	ecnCapable            = 2 // ECT(0): the sender reacts to marks
	congestionExperienced = 3 // the mark
)

// controlled reports whether congestion control governs what goes by the path.
func (p *udpPath) controlled() bool { return p.endpoint.device.cfg.CongestionControl }

// controlCongestion has packets with a payload say that they may be marked, unless the
// program has them say something else, and those that arrive show whether they were.
func (p *udpPath) controlCongestion(t *transport.QP) {
	t.SetCongestionControl(p.controlled())
	if p.controlled() {
		if p.data.TrafficClass&ecnMask == 0 {
			p.data.TrafficClass |= ecnCapable
		}
		p.endpoint.wantHeaders()
	}
}

func (p *udpPath) endControl() {
	if p.controlled() {
		p.endpoint.releaseHeaders()
	}
}

// marked notes that a packet from a queue pair's peer was marked on its way.
func (s *shard) marked(q *queuePair, p *wire.Packet, now time.Duration) {
	if q.init.Type == verbs.UD {
		return // such a sender has no connection by which it could be told
	}
	q.transport.Marked(p, now)
	s.activate(q)
}
