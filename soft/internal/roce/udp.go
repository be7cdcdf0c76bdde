package roce

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/internal/hostaddr"
	"github.com/verbena-rdma/verbena/soft/internal/roce/congestion"
	"github.com/verbena-rdma/verbena/soft/internal/roce/dma"
	"github.com/verbena-rdma/verbena/soft/internal/roce/ipheader"
	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// maxFlowLabel is the greatest flow label of an IPv6 header.
const maxFlowLabel = 1<<20 - 1

// udpOutput sends packets from an endpoint to a UDP address. It implements transport.Output.
// The endpoint's socket collects the packets until it is flushed.
type udpOutput struct {
	endpoint *endpoint
	peer     netip.AddrPort
	header   link.Header
	data     link.Header // for packets with a payload
	flow     wire.Flow
	// multicast: the peer is a group.
	multicast bool
}

// outputTo returns the output to a peer.
func (d *Device) outputTo(a verbs.AddressAttr) (udpOutput, error) {
	if err := d.checkPeer(a.DGID.Addr()); err != nil {
		return udpOutput{}, fmt.Errorf("DGID %w", err)
	}
	return d.output(a)
}

// checkPeer returns an error for addresses that do not belong to one host.
func (d *Device) checkPeer(addr netip.Addr) error {
	reason := hostaddr.Unusable(addr)
	if reason == "" && slices.Contains(d.cfg.Broadcasts, addr.Unmap()) {
		reason = "the broadcast address of a network of this host"
	}
	if reason != "" {
		return fmt.Errorf("%v cannot be the address of a peer: it is %s: %w", addr, reason, verbs.ErrInvalid)
	}
	return nil
}

// outputToGroup returns the output to a multicast group.
func (d *Device) outputToGroup(a verbs.AddressAttr) (udpOutput, error) {
	if a.UDPPort != 0 && a.UDPPort != wire.UDPPort {
		return udpOutput{}, fmt.Errorf("UDPPort is %d, must be 0 or %d for a multicast group: %w", a.UDPPort, wire.UDPPort, verbs.ErrInvalid)
	}
	hops := a.HopLimit
	out, err := d.output(a)
	out.multicast, out.header.HopLimit, out.data.HopLimit = true, hops, hops
	return out, err
}

func (d *Device) output(a verbs.AddressAttr) (udpOutput, error) {
	if a.Port != 0 {
		if err := d.checkPort(a.Port); err != nil {
			return udpOutput{}, err
		}
	}
	if a.SGIDIndex < 0 || a.SGIDIndex >= len(d.endpoints) {
		return udpOutput{}, fmt.Errorf("SGIDIndex is %d, but the GID table of device %s has the indices 0 to %d: %w", a.SGIDIndex, d.cfg.Name, len(d.endpoints)-1, verbs.ErrInvalid)
	}
	e := d.endpoints[a.SGIDIndex]
	addr := a.DGID.Addr()
	local := e.socket.Addr().Addr()
	if addr.Is4() != local.Is4() {
		return udpOutput{}, fmt.Errorf("DGID %v cannot be reached from the GID at index %d, %v: choose the index of a GID of the same address family: %w", addr, a.SGIDIndex, local, verbs.ErrInvalid)
	}
	if a.FlowLabel > maxFlowLabel {
		return udpOutput{}, fmt.Errorf("FlowLabel is %#x, must fit in 20 bits: %w", a.FlowLabel, verbs.ErrInvalid)
	}
	port := a.UDPPort
	if port == 0 {
		port = wire.UDPPort
	}
	peer := netip.AddrPortFrom(addr, port)
	header := link.Header{TrafficClass: a.TrafficClass, HopLimit: a.HopLimit, FlowLabel: a.FlowLabel}
	if addr.Is4() {
		header.FlowLabel = 0
	}
	if header.HopLimit == ipheader.DefaultHopLimit {
		header.HopLimit = 0
	}
	return udpOutput{endpoint: e, peer: peer, header: header, data: header, flow: wire.NewFlow(e.socket.Source(), peer)}, nil
}

// Send implements transport.Output. It copies the payload: the program may change its memory
// meanwhile, and the checksum must match the bytes that leave.
func (o *udpOutput) Send(p *wire.Packet, pieces [][]byte, n int) bool {
	s, d, sh := o.endpoint.socket, o.endpoint.device, o.endpoint.shard
	headers := p.Opcode.HeaderLen()
	tail := int(p.Pad) + wire.ICRCLen
	size := headers + n + tail
	header := o.header
	if p.Opcode.HasPayload() {
		header = o.data
	}
	header.Receiver = uint8(p.DestQP & shardBits)
	b, segment := s.Packet(o.peer, header, size)
	if b == nil {
		return true
	}
	p.PutHeaders(b)
	at := headers
	for _, piece := range pieces {
		if dma.Copy(b[at:at+len(piece)], piece) != dma.NoFault {
			s.Discard(size)
			return false
		}
		at += len(piece)
	}
	clear(b[at:])
	crc := o.flow.ICRCStart(uint16(segment), size, b[:headers])
	crc = wire.ICRCUpdate(crc, b[headers:size-wire.ICRCLen])
	wire.PutICRC(b[size-wire.ICRCLen:], wire.ICRCFinish(crc))
	if d.capture != nil {
		d.capture.Sent(s.Source(), o.peer, header, uint16(segment), d.now(), b)
	}
	sh.mu.counters.SentPackets++
	if o.multicast {
		d.main.multicast.sent++
	}
	return true
}

// sendPackets lets a queue pair send packets to out, which leads to sockets.
func (s *shard) sendPackets(t *transport.QP, out transport.Output, now time.Duration, a allowance) (left allowance, more bool) {
	before := s.mu.counters.SentPackets
	more = t.Transmit(out, now, sendBudget)
	sent := int(s.mu.counters.SentPackets - before)
	a.packets -= sent
	a.bytes -= sent * int(t.PathMTU())
	return a, more
}

// udpPath is the path of a connection by UDP: from an endpoint to the peer's address.
type udpPath struct {
	onlySockets
	udpOutput
}

func (p *udpPath) attach(t *transport.QP) {
	t.SetWindow(p.endpoint.window)
	p.controlCongestion(t)
	p.endpoint.receivers++
}

func (p *udpPath) detach() {
	p.endControl()
	p.endpoint.receivers--
}

// controlled reports whether the path is under congestion control.
func (p *udpPath) controlled() bool { return p.endpoint.device.cfg.CongestionControl }

// controlCongestion starts congestion control on the path. Packets with a payload carry an
// ECN-capable mark, unless the program set those bits, and the socket reports the marks of
// packets that arrive.
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

func (p *udpPath) send(t *transport.QP, now time.Duration, a allowance) (allowance, bool) {
	return p.endpoint.shard.sendPackets(t, p, now, a)
}

// trains implements path. Acknowledgements are not delayed under congestion control, which measures
// the round trip.
func (p *udpPath) trains() *endpoint {
	if p.controlled() {
		return nil
	}
	return p.endpoint
}

func (p *udpPath) leadsTo(e *endpoint, peer netip.AddrPort) bool {
	return p.endpoint == e && p.peer == peer
}

// datagramPath is the path of a queue pair for datagrams. The address handle of each request
// names the destination; packets arrive at any address of the device.
type datagramPath struct {
	onlySockets
	device *Device
}

func (p *datagramPath) attach(*transport.QP) {
	for _, e := range p.device.endpoints {
		e.wantHeaders()
		e.receivers++
	}
}

func (p *datagramPath) detach() {
	for _, e := range p.device.endpoints {
		e.releaseHeaders()
		e.receivers--
	}
}

func (p *datagramPath) send(t *transport.QP, now time.Duration, a allowance) (allowance, bool) {
	return p.device.main.sendPackets(t, nil, now, a)
}

func (p *datagramPath) leadsTo(*endpoint, netip.AddrPort) bool { return false }

func (*udpPath) kind() verbs.Path { return verbs.PathNetwork }

func (*datagramPath) kind() verbs.Path { return verbs.PathNetwork }
