package sim

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"syscall"
	"time"
	"unsafe"

	"github.com/verbena-rdma/verbena/soft/internal/roce/ipheader"
	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/soft/internal/roce/network"
)

// packet is a UDP datagram on its way.
type packet struct {
	src, dst netip.AddrPort
	header   link.Header
	data     []byte
	from     *port
	to       *Host // at which it arrives
	route    []*Link
	hop      int            // index in route of the link that it is on
	group    netip.AddrPort // the multicast group; not valid: none
	members  []*Host        // of the group, which get copies of the packet; to is the first
}

const (
	// receiveBuffer is the size of a socket's receive buffer, in bytes.
	receiveBuffer  = 4 << 20
	udpHeaderBytes = 8
	// ethernetHeaderBytes is what Ethernet adds to a packet on a link: header, checksum,
	// preamble and gap.
	ethernetHeaderBytes = 38
)

// ipLen is the length of the IP packet.
func (p *packet) ipLen() int {
	if p.dst.Addr().Is4() {
		return len(p.data) + udpHeaderBytes + 20
	}
	return len(p.data) + udpHeaderBytes + 40
}

// port is a UDP socket of a host. It implements link.Port.
type port struct {
	host   *Host
	addr   netip.AddrPort
	source netip.AddrPort

	// Guarded by the simulation's lock.
	work        func() time.Time // set once; nil: not yet
	closed      bool
	timer       time.Duration // when the device has work; zero: never
	waiting     []*packet     // not received yet
	bytes       int           // of their data
	dropped     uint64
	unreachable []link.Refusal
	groups      map[netip.AddrPort]struct{}

	// Used by the receiver, under the lock of its device.
	received  []link.Datagram
	delivered []*packet // whose data received has
}

// hostNetwork implements network.Network.
type hostNetwork struct {
	turns
	sockets map[*link.Socket]*port
}

var _ network.Network = (*hostNetwork)(nil)

// Since implements network.Network.
func (n *hostNetwork) Since(t time.Time) time.Duration { return n.Now().Sub(t) }

// Listen implements network.Network.
func (n *hostNetwork) Listen(cfg link.Config) (*link.Socket, error) {
	s := n.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if n.ports[cfg.Addr] != nil {
		return nil, fmt.Errorf("sim: listen on %v of host %s: %w", cfg.Addr, n.name, syscall.EADDRINUSE)
	}
	p := &port{host: n.Host, addr: cfg.Addr, source: cfg.Addr}
	if r := cfg.SendPorts; r != (link.PortRange{}) {
		p.source = netip.AddrPortFrom(cfg.Addr.Addr(), r.First+uint16(n.random.IntN(int(r.Last-r.First)+1)))
	}
	n.ports[cfg.Addr] = p
	socket := link.NewSocket(p.addr, p.source, receiveBuffer, p)
	n.sockets[socket] = p
	return socket, nil
}

// Serve implements network.Network.
func (n *hostNetwork) Serve(s *link.Socket, work func() time.Time) {
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	p := n.sockets[s]
	p.work = work
	if p.timer != 0 && p.timer <= n.s.elapsed() || len(p.waiting) > 0 { // outside a bubble, the driver may have been first
		p.timer = 0
		p.setTimer(n.s.elapsed())
	}
}

// Simulated implements network.Network.
func (n *hostNetwork) Simulated() bool { return true }

// Address implements network.Network.
func (n *hostNetwork) Address(mem []byte) uint64 {
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	return n.s.addresses.of(n.Host, mem)
}

// Release implements network.Network.
func (n *hostNetwork) Release(mem []byte) {
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	n.s.addresses.release(mem)
}

// AllocMemory implements network.Network.
func (n *hostNetwork) AllocMemory(size int) ([]byte, func() error) {
	rounded := (size + pageSize - 1) &^ (pageSize - 1)
	mem := make([]byte, rounded)
	if skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) & (pageSize - 1); skip != 0 {
		mem = make([]byte, rounded+pageSize)
		skip = -int(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) & (pageSize - 1)
		mem = mem[skip:]
	}
	mem = mem[:size:size]
	n.Address(mem)
	return mem, func() error {
		n.Release(mem)
		return nil
	}
}

const pageSize = 4096

// addressTable gives memory the addresses that packets carry. They come from the seed, unlike
// the real ones.
type addressTable struct {
	known map[*byte]*addressEntry
	next  map[*Host]uint64
}

type addressEntry struct {
	host *Host
	addr uint64
	uses int
}

func (t *addressTable) init() {
	t.known, t.next = make(map[*byte]*addressEntry), make(map[*Host]uint64)
}

// of returns the address of memory: the same one until it was released as often.
func (t *addressTable) of(h *Host, mem []byte) uint64 {
	first := unsafe.SliceData(mem)
	e := t.known[first]
	if e == nil {
		next := t.next[h]
		if next == 0 {
			next = uint64(h.index)<<40&(1<<46-1) | 1<<46 | h.random.Uint64()&(1<<36-1)&^(pageSize-1)
		}
		size := (uint64(len(mem)) + 2*pageSize - 1) &^ (pageSize - 1)
		t.next[h] = next + size
		e = &addressEntry{host: h, addr: next | uint64(uintptr(unsafe.Pointer(first)))&7}
		t.known[first] = e
	}
	e.uses++
	return e.addr
}

// forget releases all memory of a host whose program has crashed.
func (t *addressTable) forget(h *Host) {
	maps.DeleteFunc(t.known, func(_ *byte, e *addressEntry) bool { return e.host == h })
}

func (t *addressTable) release(mem []byte) {
	first := unsafe.SliceData(mem)
	if e := t.known[first]; e != nil {
		if e.uses--; e.uses == 0 {
			delete(t.known, first)
		}
	}
}

// bufferPool has the buffers of packets that have arrived.
type bufferPool struct {
	small, large [][]byte
	packets      []*packet
}

const (
	smallPacket = 256
	largePacket = 4608
)

func (b *bufferPool) take(n int) []byte {
	list, size := &b.small, smallPacket
	switch {
	case n > largePacket:
		return make([]byte, n)
	case n > smallPacket:
		list, size = &b.large, largePacket
	}
	if last := len(*list) - 1; last >= 0 {
		p := (*list)[last]
		*list = (*list)[:last]
		return p[:n]
	}
	return make([]byte, n, size)
}

// packet returns a packet, to be filled in.
func (b *bufferPool) packet() *packet {
	if last := len(b.packets) - 1; last >= 0 {
		x := b.packets[last]
		b.packets = b.packets[:last]
		return x
	}
	return new(packet)
}

// drop ends a packet. The lock is held.
func (s *Sim) drop(x *packet) {
	s.buffers.put(x.data)
	*x = packet{}
	s.buffers.packets = append(s.buffers.packets, x)
}

func (b *bufferPool) put(p []byte) {
	switch cap(p) {
	case smallPacket:
		b.small = append(b.small, p)
	case largePacket:
		b.large = append(b.large, p)
	}
}

// Send implements link.Port.
func (p *port) Send(to netip.AddrPort, h link.Header, data []byte) {
	s := p.host.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.closed || p.host.down {
		return
	}
	s.packets++
	if h.HopLimit == 0 {
		h.HopLimit = ipheader.DefaultHopLimit
	}
	if !to.Addr().IsMulticast() {
		if dst := s.byAddr[to.Addr()]; dst != nil {
			s.topology.send(s.newPacket(p, dst, to, h, data))
		}
		return
	}
	x := s.newPacket(p, nil, to, h, data)
	x.group = to
	for _, dst := range s.hosts {
		if dst.joined(to) {
			x.members = append(x.members, dst)
		}
	}
	s.topology.sendToGroup(x)
}

func (s *Sim) newPacket(from *port, dst *Host, to netip.AddrPort, h link.Header, data []byte) *packet {
	x := s.buffers.packet()
	*x = packet{src: from.source, dst: to, header: h, data: s.buffers.take(len(data)), from: from, to: dst}
	copy(x.data, data)
	return x
}

// copy returns a copy of a packet.
func (s *Sim) copy(x *packet) *packet {
	c := s.buffers.packet()
	*c = *x
	c.data = append(s.buffers.take(len(x.data))[:0], x.data...)
	return c
}

// joined reports whether the host is a member of a multicast group.
func (h *Host) joined(group netip.AddrPort) bool {
	for _, p := range h.ports {
		if _, member := p.groups[group]; member {
			return true
		}
	}
	return false
}

// arrive takes a packet from the network.
func (h *Host) arrive(x *packet) {
	s := h.s
	s.mu.Lock()
	if h.down {
		s.drop(x)
		s.mu.Unlock()
		return
	}
	if x.group.IsValid() {
		s.mu.Unlock()
		h.arriveAtGroup(x)
		return
	}
	p := h.ports[x.dst]
	if p == nil {
		s.refuse(x)
		s.mu.Unlock()
		return
	}
	p.queue(x)
	served := p.work != nil
	s.mu.Unlock()
	if served {
		p.progress()
	}
}

// arriveAtGroup takes a packet to a multicast group: each socket that has joined gets a copy.
func (h *Host) arriveAtGroup(x *packet) {
	s := h.s
	s.mu.Lock()
	var members []*port
	for _, a := range h.cfg.Addresses {
		for _, p := range h.ports {
			if _, member := p.groups[x.group]; member && p.addr.Addr() == a {
				members = append(members, p)
				p.queue(s.copy(x))
			}
		}
	}
	s.drop(x)
	s.mu.Unlock()
	for _, p := range members {
		p.progress()
	}
}

// queue adds a packet to the socket's buffer, if there is room. The lock is held.
func (p *port) queue(x *packet) {
	if p.bytes+len(x.data) > receiveBuffer {
		p.dropped++
		p.host.s.drop(x)
		return
	}
	p.bytes += len(x.data)
	p.waiting = append(p.waiting, x)
}

// refuse tells the sender of a packet that no socket has its port, as ICMP does. The lock is
// held.
func (s *Sim) refuse(x *packet) {
	back, reached := s.topology.latency(x.to.node, x.from.host.node)
	if !reached {
		s.drop(x)
		return
	}
	s.push(s.elapsed()+back, x.to.order(), event{kind: eventRefused, host: x.from.host, packet: x, port: x.from})
}

// refused takes the notice that a packet was refused.
func (p *port) refused(x *packet) {
	s := p.host.s
	s.mu.Lock()
	if p.closed || p.host.down {
		s.drop(x)
		s.mu.Unlock()
		return
	}
	if len(p.unreachable) < maxUnreachable {
		report := link.Refusal{Peer: x.dst, Errno: syscall.ECONNREFUSED}
		copy(report.Packet[:], x.data)
		p.unreachable = append(p.unreachable, report)
	}
	s.drop(x)
	s.mu.Unlock()
	p.progress()
}

const maxUnreachable = 64

// expire lets the device work at the time of its timer.
func (p *port) expire(now time.Duration) {
	s := p.host.s
	s.mu.Lock()
	due := p.work != nil && !p.closed && !p.host.down && p.timer != 0 && p.timer <= now
	if due {
		p.timer = 0
	}
	s.mu.Unlock()
	if due {
		p.progress()
	}
}

// progress lets the device work, on the driver's goroutine.
func (p *port) progress() {
	if next := p.work(); !next.IsZero() {
		p.SetDeadline(next)
	}
	if p.host.waiting[polls] > 0 || p.host.idlePolls > 0 {
		p.host.endPolls()
	}
}

// SetDeadline implements link.Port.
func (p *port) SetDeadline(t time.Time) {
	p.host.s.mu.Lock()
	defer p.host.s.mu.Unlock()
	p.setTimer(p.host.when(t))
}

// Interrupt implements link.Port.
func (p *port) Interrupt() {
	p.host.s.mu.Lock()
	defer p.host.s.mu.Unlock()
	p.setTimer(p.host.s.elapsed())
}

// setTimer makes the device work at that time, at the latest. The lock is held.
func (p *port) setTimer(at time.Duration) {
	at = max(at, p.host.s.elapsed(), 1)
	if p.closed || p.timer != 0 && p.timer <= at {
		return
	}
	p.timer = at
	p.host.push(at, event{kind: eventTimer, port: p})
}

// Receive implements link.Port.
func (p *port) Receive() []link.Datagram {
	s := p.host.s
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, x := range p.delivered {
		s.drop(x)
		p.delivered[i] = nil
	}
	p.delivered, p.waiting = p.waiting, p.delivered[:0]
	p.received = p.received[:0]
	p.bytes = 0
	for _, x := range p.delivered {
		p.received = append(p.received, link.Datagram{Src: x.src, Data: x.data, Group: x.group.Addr(), Header: x.header})
	}
	return p.received
}

// Unreachable implements link.Port.
func (p *port) Unreachable() []link.Refusal {
	p.host.s.mu.Lock()
	defer p.host.s.mu.Unlock()
	list := p.unreachable
	p.unreachable = nil
	return list
}

// Join implements link.Port.
func (p *port) Join(group netip.AddrPort) error {
	p.host.s.mu.Lock()
	defer p.host.s.mu.Unlock()
	if p.groups == nil {
		p.groups = make(map[netip.AddrPort]struct{})
	}
	p.groups[group] = struct{}{}
	return nil
}

// Leave implements link.Port.
func (p *port) Leave(group netip.AddrPort) {
	p.host.s.mu.Lock()
	defer p.host.s.mu.Unlock()
	delete(p.groups, group)
}

// CheckRoute implements link.Port: every address can be reached, or at least be tried.
func (p *port) CheckRoute(netip.AddrPort) error { return nil }

// Dropped implements link.Port.
func (p *port) Dropped() uint64 {
	p.host.s.mu.Lock()
	defer p.host.s.mu.Unlock()
	return p.dropped
}

// Close implements link.Port.
func (p *port) Close() {
	s := p.host.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.closed {
		return
	}
	p.closed = true
	if p.host.ports[p.addr] == p {
		delete(p.host.ports, p.addr)
	}
	for _, x := range slices.Concat(p.waiting, p.delivered) {
		s.drop(x)
	}
	p.waiting, p.delivered = nil, nil
}
