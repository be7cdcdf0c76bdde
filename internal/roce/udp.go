package roce

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/internal/roce/dma"
	"github.com/verbena-rdma/verbena/internal/roce/transport"
	"github.com/verbena-rdma/verbena/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// copyLimit is the payload up to which a copy costs less than a reference.
const copyLimit = 512

// udpOutput sends packets from an endpoint to a UDP address. It implements
// transport.Output. The endpoint's socket collects them until it is flushed.
type udpOutput struct {
	endpoint *endpoint
	peer     netip.AddrPort
	flow     wire.Flow
}

// outputTo finds the way to a peer.
func (d *Device) outputTo(a verbs.AddressAttr) (udpOutput, error) {
	if a.SGIDIndex < 0 || a.SGIDIndex >= len(d.endpoints) {
		return udpOutput{}, fmt.Errorf("SGIDIndex is %d, the GID table of device %s has the indices 0 to %d: %w", a.SGIDIndex, d.cfg.Name, len(d.endpoints)-1, verbs.ErrInvalid)
	}
	e := d.endpoints[a.SGIDIndex]
	addr := a.DGID.Addr()
	local := e.socket.Addr().Addr()
	if addr.Is4() != local.Is4() || addr.IsUnspecified() || addr.IsMulticast() {
		return udpOutput{}, fmt.Errorf("DGID %v cannot be reached from the GID at index %d, %v: choose an index whose GID is of the peer's family: %w", addr, a.SGIDIndex, local, verbs.ErrInvalid)
	}
	port := a.UDPPort
	if port == 0 {
		port = wire.UDPPort
	}
	peer := netip.AddrPortFrom(addr, port)
	return udpOutput{endpoint: e, peer: peer, flow: wire.NewFlow(e.socket.Addr(), peer)}, nil
}

// Send implements transport.Output.
func (o *udpOutput) Send(p *wire.Packet, pieces [][]byte, n int) {
	s, d := o.endpoint.socket, o.endpoint.device
	headers := p.Opcode.HeaderLen()
	tail := int(p.Pad) + wire.ICRCLen
	size := headers + n + tail
	segment := uint16(s.Packet(o.peer, size))
	// What a peer reads may change while it is read: its checksum must be that
	// of the bytes that leave.
	if n <= copyLimit || p.Opcode.HasAETH() {
		b := s.Bytes(size)
		p.PutHeaders(b)
		at := headers
		for _, piece := range pieces {
			at += dma.Copy(b[at:], piece)
		}
		clear(b[at:])
		crc := o.flow.ICRCStart(segment, size, b[:headers])
		crc = wire.ICRCUpdate(crc, b[headers:size-wire.ICRCLen])
		wire.PutICRC(b[size-wire.ICRCLen:], wire.ICRCFinish(crc))
		if d.capture != nil {
			d.capture.packet(s.Addr(), o.peer, segment, d.now(), b)
		}
	} else {
		b := s.Bytes(headers)
		p.PutHeaders(b)
		crc := o.flow.ICRCStart(segment, size, b)
		for _, piece := range pieces {
			s.Reference(piece)
			crc = wire.ICRCUpdate(crc, piece)
		}
		t := s.Bytes(tail)
		clear(t)
		crc = wire.ICRCUpdate(crc, t[:p.Pad])
		wire.PutICRC(t[p.Pad:], wire.ICRCFinish(crc))
		if d.capture != nil {
			d.capture.packet(s.Addr(), o.peer, segment, d.now(), append([][]byte{b}, append(pieces, t)...)...)
		}
	}
	d.counters.SentPackets++
}

// transmitPackets has a queue pair send to out, and to sockets in the end.
func (d *Device) transmitPackets(t *transport.QP, out transport.Output, now time.Duration, a allowance) (left allowance, more bool) {
	before := d.counters.SentPackets
	more = t.Transmit(out, now, sendBudget)
	a.packets -= int(d.counters.SentPackets - before)
	return a, more
}

// udpPath is the path of a connection: from an endpoint to the peer's address,
// and back.
type udpPath struct {
	udpOutput
	source   netip.AddrPort // of the last packet that came
	arriving wire.Flow      // from there
}

func (p *udpPath) attach(t *transport.QP) {
	t.SetWindow(p.endpoint.window)
	p.endpoint.users++
	p.endpoint.receivers++
}

func (p *udpPath) detach() {
	p.endpoint.users--
	p.endpoint.receivers--
}

func (p *udpPath) transmit(t *transport.QP, now time.Duration, a allowance) (allowance, bool) {
	return p.endpoint.device.transmitPackets(t, p, now, a)
}

// flowFrom takes packets from the peer's address. Their source port is the
// peer's to choose (annex A17.4.5).
func (p *udpPath) flowFrom(e *endpoint, source netip.AddrPort) *wire.Flow {
	if e != p.endpoint {
		return nil
	}
	if source != p.source {
		if source.Addr() != p.peer.Addr() {
			return nil
		}
		p.source, p.arriving = source, wire.NewFlow(source, e.socket.Addr())
	}
	return &p.arriving
}

func (p *udpPath) endsAt(e *endpoint, peer netip.AddrPort) bool {
	return p.endpoint == e && p.peer == peer
}

// datagramPath is the path of a queue pair for datagrams. What it sends goes
// where the address handle of each request says; packets may come from anywhere,
// by any address of the device.
type datagramPath struct {
	device   *Device
	endpoint *endpoint      // that the last packet came to
	source   netip.AddrPort // that it came from
	arriving wire.Flow      // from there
}

func (p *datagramPath) attach(*transport.QP) {
	for _, e := range p.device.endpoints {
		e.users++
		e.receivers++
	}
}

func (p *datagramPath) detach() {
	for _, e := range p.device.endpoints {
		e.users--
		e.receivers--
	}
}

func (p *datagramPath) transmit(t *transport.QP, now time.Duration, a allowance) (allowance, bool) {
	return p.device.transmitPackets(t, nil, now, a)
}

func (p *datagramPath) flowFrom(e *endpoint, source netip.AddrPort) *wire.Flow {
	if e != p.endpoint || source != p.source {
		p.endpoint, p.source, p.arriving = e, source, wire.NewFlow(source, e.socket.Addr())
	}
	return &p.arriving
}

func (p *datagramPath) endsAt(*endpoint, netip.AddrPort) bool { return false }
