package roce

import (
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
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

// udpPath is the path of a connection: from an endpoint to the peer's address,
// and back.
type udpPath struct {
	udpOutput
	// source is where packets come from, once it is held; before, where the last one did.
	source   netip.AddrPort
	arriving wire.Flow // from there
	held     bool
	learned  bool // it is held since a packet has come from there, and nobody has named it
	// behind is how many packets of repetitions a port is learned from, too.
	behind int32
}

// newUDPPath makes the path to a peer that sends from a port. 0: from one that it has chosen
// and nobody has named.
func newUDPPath(out udpOutput, sourcePort uint16) udpPath {
	p := udpPath{udpOutput: out}
	if sourcePort != 0 {
		p.takeSource(netip.AddrPortFrom(out.peer.Addr(), sourcePort))
		p.held = true
	}
	return p
}

func (p *udpPath) takeSource(source netip.AddrPort) {
	p.source, p.arriving = source, wire.NewFlow(source, p.endpoint.socket.Addr())
}

func (p *udpPath) attach(t *transport.QP) {
	t.SetWindow(p.endpoint.window)
	p.controlCongestion(t)
	p.endpoint.users++
	p.endpoint.receivers++
	p.endpoint.filter.admit(p.admitted())
}

func (p *udpPath) detach() {
	p.endControl()
	p.endpoint.users--
	p.endpoint.receivers--
	p.endpoint.filter.withdraw(p.admitted())
}

// admitted is where packets may come from as long as the path is in use: one port, or any of the
// address where nobody has named it, since a port that was learned can be learned again.
func (p *udpPath) admitted() netip.AddrPort {
	if p.held && !p.learned {
		return p.source
	}
	return netip.AddrPortFrom(p.peer.Addr(), 0)
}

func (p *udpPath) transmit(t *transport.QP, now time.Duration, a allowance) (allowance, bool) {
	return p.endpoint.shard.transmitPackets(t, p, now, a)
}

// flowFrom takes packets from the peer's address, and from its port once that is known. A
// peer chooses its port for the packets of a queue pair (annex A17.4.5), and keeps it.
func (p *udpPath) flowFrom(e *endpoint, source netip.AddrPort) *wire.Flow {
	if source != p.source && (p.held || source.Addr() != p.peer.Addr()) || e != p.endpoint {
		return nil
	}
	if source != p.source {
		p.takeSource(source)
	}
	return &p.arriving
}

// isPeer reports whether that is the peer's address.
func (p *udpPath) isPeer(e *endpoint, addr netip.Addr) bool {
	return e == p.endpoint && addr == p.peer.Addr()
}

func (p *udpPath) endsAt(e *endpoint, peer netip.AddrPort) bool {
	return p.endpoint == e && p.peer == peer
}

// datagramPath is the path of a queue pair for datagrams. What it sends goes
// where the address handle of each request says; packets may come from anywhere,
// by any address of the device.
type datagramPath struct {
	device   *Device
	qpn      uint32         // while it is attached
	endpoint *endpoint      // that the last packet came to
	source   netip.AddrPort // that it came from
	arriving wire.Flow      // from there
}

func (p *datagramPath) attach(t *transport.QP) {
	p.qpn = t.Num()
	for _, e := range p.device.endpoints {
		e.filter.admitAll(p.qpn)
		e.wantHeaders()
		e.users++
		e.receivers++
	}
}

func (p *datagramPath) detach() {
	for _, e := range p.device.endpoints {
		e.filter.withdrawAll(p.qpn)
		e.releaseHeaders()
		e.users--
		e.receivers--
	}
}

func (p *datagramPath) transmit(t *transport.QP, now time.Duration, a allowance) (allowance, bool) {
	return p.device.main.transmitPackets(t, nil, now, a)
}

func (p *datagramPath) flowFrom(e *endpoint, source netip.AddrPort) *wire.Flow {
	if e != p.endpoint || source != p.source {
		p.endpoint, p.source, p.arriving = e, source, wire.NewFlow(source, e.socket.Addr())
	}
	return &p.arriving
}

func (p *datagramPath) endsAt(*endpoint, netip.AddrPort) bool { return false }

func (*udpPath) kind() verbs.Path { return verbs.PathNetwork }

func (*datagramPath) kind() verbs.Path { return verbs.PathNetwork }
