package link

import (
	"fmt"
	"net/netip"
)

const (
	maxMessages   = 64
	arenaSize     = 256 << 10
	maxBatchBytes = 512 << 10
	copyBelow     = 256 // bytes that cost less to copy than as a piece of their own

	// packetPieces is the most that a packet can have, or a train: references
	// with something between them. It is below the kernel's limit of 1,024.
	packetPieces = 2*(MaxPacket/copyBelow) + 1
	maxPieces    = 2048
)

// piece has the layout of struct iovec, so that the kernel can read it.
type piece struct {
	base *byte
	len  uintptr
}

// message is a train of packets to one destination.
type message struct {
	dst     netip.AddrPort
	header  Header
	first   int // index of its first piece
	pieces  int
	packets int
	size    int // bytes of every packet but the last
	bytes   int
	closed  bool // the last packet is shorter
}

// batch collects packets until they are sent.
type batch struct {
	messages     [maxMessages]message
	messageCount int
	pieces       [maxPieces]piece
	pieceCount   int
	arena        []byte
	used         int  // bytes of the arena
	tail         bool // the last piece ends at arena[used] and may grow
	total        int  // bytes in all messages
	packets      int  // in all messages, the open one excluded

	open    bool
	bad     bool // the open packet cannot be sent
	created bool // the open packet started its message
	size    int
	filled  int
	mark    mark

	v4          bool
	maxSegments int
	dropped     int
	err         error
}

// mark is the state before the open packet.
type mark struct {
	pieceCount int
	lastLen    uintptr
	used       int
	tail       bool
}

// Packet starts the next packet, of exactly size bytes (1 to [MaxPacket]), with those
// fields of the IP header, and
// returns its index in the train that it joined, 0 when it is sent alone: the
// IPv4 identification that it will carry. The bytes are given by Bytes and
// Reference; a packet not given all of them is dropped. When a batch is full
// its packets leave here, and the next Flush returns what became of them.
func (s *Socket) Packet(dst netip.AddrPort, h Header, size int) (segment int) {
	b := &s.batch
	b.seal()
	if b.full(size) {
		s.io.send(b)
		b.reset()
	}
	return b.begin(dst, h, size)
}

// Bytes returns the next n bytes of the packet. The caller fills them before it
// calls Packet or Flush, and must not use them after that.
func (s *Socket) Bytes(n int) []byte { return s.batch.bytes(n) }

// Reference sends the next len(p) bytes of the packet from where they lie; a
// few are copied. They must not change until Flush returns.
func (s *Socket) Reference(p []byte) { s.batch.reference(p) }

// Pending is the number of packets collected and not yet sent.
func (s *Socket) Pending() int { return s.batch.pending() }

// Flush sends all packets collected. A full send buffer is waited for at most
// about 1 ms. It returns the number of packets dropped since the last Flush and
// the first error since then; packets dropped for want of buffers count but are
// no error. A route's path MTU that a packet exceeds gives [syscall.EMSGSIZE].
func (s *Socket) Flush() (dropped int, err error) {
	b := &s.batch
	b.seal()
	if b.messageCount > 0 {
		s.io.send(b)
		b.reset()
	}
	return b.outcome()
}

func (b *batch) init(v4 bool, maxSegments int) {
	b.arena = make([]byte, arenaSize)
	b.v4 = v4
	b.maxSegments = maxSegments
}

// full reports whether a packet of size bytes has to wait for the next batch.
func (b *batch) full(size int) bool {
	return b.messageCount == maxMessages ||
		b.pieceCount+packetPieces > maxPieces ||
		(b.packets > 0 && b.total+size > maxBatchBytes) ||
		b.used+min(size, MaxPacket) > arenaSize
}

// begin opens the next packet. The batch is not full.
func (b *batch) begin(dst netip.AddrPort, h Header, size int) (segment int) {
	if dst.Addr().Is4In6() {
		dst = netip.AddrPortFrom(dst.Addr().Unmap(), dst.Port())
	}
	b.open, b.bad, b.created = true, false, false
	b.size, b.filled = size, 0
	b.mark = mark{pieceCount: b.pieceCount, used: b.used, tail: b.tail}
	if b.pieceCount > 0 {
		b.mark.lastLen = b.pieces[b.pieceCount-1].len
	}
	switch {
	case size < 1 || size > MaxPacket:
		b.refuse(fmt.Errorf("link: packet to %s has %d bytes; 1 to %d are possible: %w", dst, size, MaxPacket, ErrPacket))
		return 0
	case !dst.IsValid() || dst.Addr().Is4() != b.v4:
		b.refuse(fmt.Errorf("link: packet to %s: the socket is %s: %w", dst, family(b.v4), ErrAddress))
		return 0
	}
	if b.messageCount > 0 {
		m := &b.messages[b.messageCount-1]
		if m.packets < b.maxSegments && !m.closed && size <= m.size && m.bytes+size <= MaxPacket && m.dst == dst && m.header == h {
			return m.packets
		}
	}
	b.messages[b.messageCount] = message{dst: dst, header: h, first: b.pieceCount, size: size}
	b.messageCount++
	b.created = true
	b.tail = false // a piece belongs to one message
	return 0
}

func (b *batch) bytes(n int) []byte {
	if n <= 0 {
		return nil
	}
	if !b.accept(n) {
		return make([]byte, n)
	}
	p := b.arena[b.used : b.used+n : b.used+n]
	b.used += n
	if b.tail {
		b.pieces[b.pieceCount-1].len += uintptr(n)
		return p
	}
	b.tail = true
	b.append(p)
	return p
}

func (b *batch) reference(p []byte) {
	if len(p) <= copyBelow {
		copy(b.bytes(len(p)), p)
		return
	}
	if b.accept(len(p)) {
		b.tail = false
		b.append(p)
	}
}

// accept takes note of n more bytes, or refuses what the packet has no room for.
func (b *batch) accept(n int) bool {
	if b.bad || !b.open || n > b.size-b.filled {
		b.bad = true
		return false
	}
	b.filled += n
	return true
}

func (b *batch) append(p []byte) {
	b.pieces[b.pieceCount] = piece{base: &p[0], len: uintptr(len(p))}
	b.pieceCount++
	b.messages[b.messageCount-1].pieces++
}

// seal ends the open packet, or takes it back if it is not complete.
func (b *batch) seal() {
	if !b.open {
		return
	}
	b.open = false
	if b.bad || b.filled != b.size {
		b.rollback()
		return
	}
	m := &b.messages[b.messageCount-1]
	m.packets++
	m.bytes += b.size
	m.closed = b.size < m.size
	b.total += b.size
	b.packets++
}

func (b *batch) rollback() {
	if b.err == nil {
		b.err = fmt.Errorf("link: packet announced with %d bytes was not given exactly that; it is dropped: %w", b.size, ErrPacket)
	}
	b.dropped++
	if b.created {
		b.messageCount--
	} else if b.messageCount > 0 {
		b.messages[b.messageCount-1].pieces -= b.pieceCount - b.mark.pieceCount
	}
	clear(b.pieces[b.mark.pieceCount:b.pieceCount])
	b.pieceCount, b.used, b.tail = b.mark.pieceCount, b.mark.used, b.mark.tail
	if b.pieceCount > 0 {
		b.pieces[b.pieceCount-1].len = b.mark.lastLen
	}
}

func (b *batch) refuse(err error) {
	b.bad = true
	b.fail(err)
}

// fail keeps the first error.
func (b *batch) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

// drop gives up the messages from the one numbered first.
func (b *batch) drop(first int) {
	for i := first; i < b.messageCount; i++ {
		b.dropped += b.messages[i].packets
	}
}

// reset forgets the messages and lets go of the memory that they refer to.
func (b *batch) reset() {
	clear(b.pieces[:b.pieceCount])
	b.messageCount, b.pieceCount, b.used, b.total, b.packets = 0, 0, 0, 0, 0
	b.tail = false
}

func (b *batch) pending() int {
	if b.open {
		return b.packets + 1
	}
	return b.packets
}

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
