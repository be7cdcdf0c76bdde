package link

import (
	"fmt"
	"net/netip"
)

const (
	maxMessages = 64
	// arenaSize has room for four long trains, and is well below the size of a second-level
	// cache.
	arenaSize = 256 << 10
	// Trains start at multiples of cacheLine, so that the kernel copies whole lines.
	cacheLine = 64
)

// message is a train of packets to one destination.
type message struct {
	dst     netip.AddrPort
	header  Header
	at      int // in the arena
	packets int
	size    int // bytes of every packet but the last
	bytes   int
	closed  bool // the last packet is shorter
}

// batch collects packets until they are sent. Each train is contiguous: the kernel takes many
// times as long for separate pieces for each header and payload.
type batch struct {
	messages     []message
	messageCount int
	arena        []byte
	used         int // bytes of the arena
	packets      int // in all messages

	v4          bool
	maxSegments int
	dropped     int
	err         error
}

// Packet adds a packet of size bytes (1 to [MaxPacket]) with those fields of the IP header.
// The caller may fill the returned packet until the next call of Packet or Flush. segment is
// the packet's index in its train, 0 if it is sent alone: the IPv4 identification that it will
// carry. A packet that cannot be sent is nil, counts as dropped, and the next Flush returns
// why. If the batch is full, its packets are sent here, and the next Flush returns their
// outcome.
func (s *Socket) Packet(dst netip.AddrPort, h Header, size int) (p []byte, segment int) {
	b := &s.batch
	if dst.Addr().Is4In6() {
		dst = netip.AddrPortFrom(dst.Addr().Unmap(), dst.Port())
	}
	if err := b.check(dst, size); err != nil {
		b.dropped++
		b.fail(err)
		return nil, 0
	}
	m := b.lastTrain(dst, h, size)
	if m == nil {
		if b.full(size) {
			s.io.send(b)
			b.reset()
			if room := cacheLine + size; room > len(b.arena) { // only a small batch
				b.arena = make([]byte, room)
			}
		}
		m = b.begin(dst, h, size)
	}
	segment = m.packets
	m.packets++
	m.bytes += size
	m.closed = size < m.size
	b.packets++
	p = b.arena[b.used : b.used+size : b.used+size]
	b.used += size
	return p, segment
}

// Discard removes the packet, of that size, that Packet has returned last.
func (s *Socket) Discard(size int) {
	b := &s.batch
	m := &b.messages[b.messageCount-1]
	m.packets--
	m.bytes -= size
	m.closed = false
	b.packets--
	b.used -= size
	if m.packets > 0 {
		return
	}
	b.messageCount--
	b.used = 0
	if b.messageCount > 0 { // not the start of the removed train: the next packet may join the train before it
		last := &b.messages[b.messageCount-1]
		b.used = last.at + last.bytes
	}
}

// Pending returns the number of packets collected and not yet sent.
func (s *Socket) Pending() int { return s.batch.packets }

// Flush sends all packets collected. It waits for a full send buffer for at most about 1 ms.
// It returns the number of packets dropped since the last Flush and the first error since
// then; packets dropped for lack of buffers count but are no error. A packet that exceeds the
// path MTU of its route gives [syscall.EMSGSIZE].
func (s *Socket) Flush() (dropped int, err error) {
	b := &s.batch
	if b.messageCount > 0 {
		s.io.send(b)
		b.reset()
	}
	return b.outcome()
}

func (b *batch) init(v4 bool, maxSegments int) {
	b.arena = make([]byte, arenaSize)
	b.messages = make([]message, maxMessages)
	b.v4 = v4
	b.maxSegments = maxSegments
}

// initSmall is init for a socket that is cheap to send a packet with: there are thousands of
// them in a simulation.
func (b *batch) initSmall(v4 bool) {
	b.messages = make([]message, 4)
	b.v4 = v4
	b.maxSegments = 1
}

func (b *batch) check(dst netip.AddrPort, size int) error {
	switch {
	case size < 1 || size > MaxPacket:
		return fmt.Errorf("link: packet to %s has %d bytes, must have 1 to %d: %w", dst, size, MaxPacket, ErrPacket)
	case !dst.IsValid() || dst.Addr().Is4() != b.v4:
		return fmt.Errorf("link: packet to %s: the socket is %s: %w", dst, family(b.v4), ErrAddress)
	}
	return nil
}

// lastTrain returns the last train, if the packet can be its next one.
func (b *batch) lastTrain(dst netip.AddrPort, h Header, size int) *message {
	if b.messageCount == 0 {
		return nil
	}
	m := &b.messages[b.messageCount-1]
	if m.closed || m.packets == b.maxSegments || size > m.size || m.bytes+size > MaxPacket || m.dst != dst || m.header != h {
		return nil
	}
	return m
}

// full reports whether a train whose first packet has size bytes must wait for the next batch.
// A train is added only if there is room for all of its packets: a short train costs the
// kernel almost as much as a long one.
func (b *batch) full(size int) bool {
	return b.messageCount == len(b.messages) || b.used+cacheLine+min(size*b.maxSegments, MaxPacket) > len(b.arena)
}

// begin adds an empty train.
func (b *batch) begin(dst netip.AddrPort, h Header, size int) *message {
	b.used = (b.used + cacheLine - 1) &^ (cacheLine - 1)
	m := &b.messages[b.messageCount]
	*m = message{dst: dst, header: h, at: b.used, size: size}
	b.messageCount++
	return m
}

// data returns the packets of a message, one after the other.
func (b *batch) data(m *message) []byte { return b.arena[m.at : m.at+m.bytes] }

// fail keeps the first error.
func (b *batch) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

// drop drops the messages from index first on.
func (b *batch) drop(first int) {
	for i := first; i < b.messageCount; i++ {
		b.dropped += b.messages[i].packets
	}
}

// reset forgets the messages.
func (b *batch) reset() { b.messageCount, b.used, b.packets = 0, 0, 0 }

func (b *batch) outcome() (dropped int, err error) {
	dropped, err = b.dropped, b.err
	b.dropped, b.err = 0, nil
	return dropped, err
}

func family(v4 bool) string {
	if v4 {
		return "IPv4"
	}
	return "IPv6"
}
