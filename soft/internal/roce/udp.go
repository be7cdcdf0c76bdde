package roce

import (
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/congestion"
	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/verbs"
)

// transmitPackets has a queue pair send to out, and to sockets in the end.
func (s *shard) transmitPackets(t *transport.QP, out transport.Output, now time.Duration, a allowance) (left allowance, more bool) {
	before := s.counters.SentPackets
	more = t.Transmit(out, now, sendBudget)
	sent := int(s.counters.SentPackets - before)
	a.packets -= sent
	a.bytes -= sent * int(t.PathMTU())
	return a, more
}

// udpPath is the path of a connection: from an endpoint to the peer's address.
type udpPath struct{ udpOutput }

func (p *udpPath) attach(t *transport.QP) {
	t.SetWindow(p.endpoint.window)
	p.controlCongestion(t)
	p.endpoint.users++
	p.endpoint.receivers++
}

func (p *udpPath) detach() {
	p.endControl()
	p.endpoint.users--
	p.endpoint.receivers--
}

// controlled reports whether congestion control governs what goes by the path.
func (p *udpPath) controlled() bool { return p.endpoint.device.cfg.CongestionControl }

// controlCongestion lets packets with a payload say that they may be marked, unless the program set
// those bits, and those that arrive show whether they were.
func (p *udpPath) controlCongestion(t *transport.QP) {
	t.SetCongestionControl(p.controlled())
	if p.controlled() {
		p.data.TrafficClass = congestion.Capable(p.data.TrafficClass)
		p.endpoint.wantHeaders()
	}
}

func (p *udpPath) endControl() {
	if p.controlled() {
		p.endpoint.releaseHeaders()
	}
}

func (p *udpPath) transmit(t *transport.QP, now time.Duration, a allowance) (allowance, bool) {
	return p.endpoint.shard.transmitPackets(t, p, now, a)
}

func (p *udpPath) endsAt(e *endpoint, peer netip.AddrPort) bool {
	return p.endpoint == e && p.peer == peer
}

// datagramPath is the path of a queue pair for datagrams. What it sends goes where the address
// handle of each request says; packets come by any address of the device.
type datagramPath struct{ device *Device }

func (p *datagramPath) attach(*transport.QP) {
	for _, e := range p.device.endpoints {
		e.wantHeaders()
		e.users++
		e.receivers++
	}
}

func (p *datagramPath) detach() {
	for _, e := range p.device.endpoints {
		e.releaseHeaders()
		e.users--
		e.receivers--
	}
}

func (p *datagramPath) transmit(t *transport.QP, now time.Duration, a allowance) (allowance, bool) {
	return p.device.main.transmitPackets(t, nil, now, a)
}

func (p *datagramPath) endsAt(*endpoint, netip.AddrPort) bool { return false }

func (*udpPath) kind() verbs.Path { return verbs.PathNetwork }

func (*datagramPath) kind() verbs.Path { return verbs.PathNetwork }
