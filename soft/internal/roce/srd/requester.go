package srd

import (
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// requester is the part of a context that sends requests. Sequence numbers below una are done,
// and those from next on have not been assigned. The packets under way are bounded by the
// congestion window, and by the sequence numbers that the peer keeps track of.
type requester struct {
	una, next uint32
	slots     []slot // of the packets from una to next; the length is a power of two
	done      window // of those, the packets that are done

	queue       messageList // messages with packets that have not been sent
	waiting     messageList // messages that the peer had no receive for
	waitUntil   time.Duration
	outstanding int // messages that are not complete

	sent          [2]slotList // packets under way, in the order in which they left; by kind
	lost          slotList    // packets to be sent again
	inFlight      int         // packets under way
	latestArrived [2]time.Duration
	spray
	congestion
	roundTrip
}

// The kinds of packets under way. Acknowledgements show at once which packets have arrived,
// but a response to a read may wait behind others.
const (
	kindData = iota
	kindRead
)

const (
	// windowBits is how many sequence numbers a receiver keeps track of.
	windowBits = 1024
	// maxWindow is how far a packet may be ahead of the oldest that is not done. It is a word
	// less than windowBits, since an acknowledgement begins at a whole word.
	maxWindow = windowBits - 64
	// messageTurn is how many packets of a message leave before the next message has its
	// turn.
	messageTurn = 8
	// maxTries is how often a packet is sent before its request fails, even if the peer
	// answers others.
	maxTries = 100
)

type slotState uint8

const (
	slotDone     slotState = iota // done with
	slotInFlight                  // under way, in a list of sent
	slotLost                      // in lost
	slotHeld                      // not sent yet
)

// slot is a packet that has a sequence number.
type slot struct {
	msg        *message
	gen        uint32 // of the message
	index      uint32 // of the packet in it
	prev, next uint32 // in its list: sequence numbers, or none
	sentAt     time.Duration
	cost       uint32
	state      slotState
	kind       uint8
	tries      uint8
}

// live reports whether the request is not complete.
func (s *slot) live() bool { return s.msg.gen == s.gen }

// none stands for no sequence number.
const none = 1 << 31

// slotList is a list of packets, by sequence number. Every operation takes constant time.
type slotList struct{ first, last uint32 }

func (c *Context) slot(psn uint32) *slot { return &c.slots[psn&uint32(len(c.slots)-1)] }

func (c *Context) push(l *slotList, psn uint32, s *slot) {
	s.prev, s.next = l.last, none
	if l.last == none {
		l.first = psn
	} else {
		c.slot(l.last).next = psn
	}
	l.last = psn
}

func (c *Context) unlink(l *slotList, s *slot) {
	if s.prev == none {
		l.first = s.next
	} else {
		c.slot(s.prev).next = s.next
	}
	if s.next == none {
		l.last = s.prev
	} else {
		c.slot(s.next).prev = s.prev
	}
}

// span is how many sequence numbers there are from una to next.
func (c *Context) span() int { return int(wire.PSNDiff(c.next, c.una)) }

// assignPSN assigns the next sequence number to a packet of a message.
func (c *Context) assignPSN(m *message, state slotState) uint32 {
	if c.span() == len(c.slots) {
		c.growSlots()
	}
	psn := c.next
	c.next = wire.PSNAdd(c.next, 1)
	c.done.clear(psn)
	kind := uint8(kindData)
	if m.op == verbs.OpRead {
		kind = kindRead
	}
	// Set the fields one by one: a composite literal is built elsewhere and copied.
	s := c.slot(psn)
	s.msg, s.gen, s.index = m, m.gen, m.sent
	s.cost, s.state, s.kind, s.tries = c.t.limits.cost(m.size(m.sent)), state, kind, 0
	m.sent++
	return psn
}

// growSlots makes room for more packets. It starts small, so that a context with little use
// takes little memory.
func (c *Context) growSlots() {
	slots := make([]slot, max(2*len(c.slots), 8))
	for psn := c.una; psn != c.next; psn = wire.PSNAdd(psn, 1) {
		slots[psn&uint32(len(slots)-1)] = *c.slot(psn)
	}
	c.slots = slots
}

// removeInFlight removes a packet from those under way.
func (c *Context) removeInFlight(s *slot) {
	c.unlink(&c.sent[s.kind], s)
	c.inFlight--
	c.underWay -= int(s.cost)
}

// drop removes a packet from its list, and marks it as done.
func (c *Context) drop(psn uint32, s *slot) {
	switch s.state {
	case slotInFlight:
		c.removeInFlight(s)
	case slotLost:
		c.unlink(&c.lost, s)
	}
	s.state = slotDone
	c.done.set(psn)
}

// advance moves una past the packets that are done.
func (c *Context) advance() {
	for c.una != c.next && c.slot(c.una).state == slotDone {
		c.slot(c.una).msg = nil
		c.una = wire.PSNAdd(c.una, 1)
	}
}

// noteDone notes that a packet has been acknowledged, or answered.
func (c *Context) noteDone(psn uint32, s *slot, now time.Duration) {
	c.noteArrival(s, now)
	c.ackedBytes += int(s.cost)
	m, live := s.msg, s.live()
	c.drop(psn, s)
	if !live {
		return
	}
	m.finished++
	switch {
	case m.finished == m.packets:
		m.succeed()
	case m.list == nil && m.sent < m.packets && !m.lastWaits():
		c.queue.pushFront(m)
	}
}

// noteArrival notes when the latest packet left that is known to have arrived. A repeated packet
// does not count if the answer may be to its first copy (RFC 8985 6.2).
func (c *Context) noteArrival(s *slot, now time.Duration) {
	if s.tries == 1 || now-s.sentAt >= c.Smoothed/2 {
		c.latestArrived[s.kind] = max(c.latestArrived[s.kind], s.sentAt)
	}
}

// sendRequests sends requests within the window and the budget, and returns the rest of the
// budget.
func (c *Context) sendRequests(now time.Duration, budget int) int {
	if c.confirmed && c.inFlight == 0 && now > c.receivedAt+trustTime {
		c.confirmed = false
	}
	pending := c.queue.first != nil || c.lost.first != none || c.spray.n > 0
	if pending && !c.confirmed && !c.helloPending {
		c.helloDue = true
	}
	if c.helloDue && budget > 0 {
		c.sendHello(now)
		budget--
	}
	if !pending || !c.confirmed {
		return budget
	}
	c.usedAt = now
	c.spray.departedBefore = c.spray.departed
	for budget > 0 && (c.underWay < c.window || c.overdue && c.lost.first != none) {
		switch {
		case c.overdue && c.lost.first != none:
			c.sendLost(now)
			budget--
		case c.spray.n > 0 && c.sprayDue():
			c.sendHeld(now)
			budget--
		case c.lost.first != none:
			c.sendLost(now)
			budget--
		case c.queue.first != nil && c.span() < maxWindow:
			c.sendNext(now)
			budget--
		case c.spray.n > 0 && c.releaseIdle():
			c.sendHeld(now)
			budget--
		default:
			return budget
		}
	}
	return budget
}

// sendNext sends the next packet of the first message in the queue, or holds it.
func (c *Context) sendNext(now time.Duration) {
	m := c.queue.first
	if m.length > c.mtu && transport.CompletionOpcodes[m.op] == verbs.WCSend { // the peer's MTU is smaller than this end's
		m.fail(codeBadLength)
		return
	}
	if m.packets == 0 {
		m.mtu = c.mtu
		m.packets = max((m.length+m.mtu-1)/m.mtu, 1)
	}
	if m.lastWaits() {
		c.queue.remove(m) // finish puts it back
		return
	}
	if m.op == verbs.OpRead {
		c.sendRead(m, now)
		return
	}
	index := m.sent
	if c.hold(m) {
		c.sprayHold(c.assignPSN(m, slotHeld))
	} else {
		c.transmit(c.assignPSN(m, slotInFlight), now)
	}
	if m.list == nil {
		return // it has failed
	}
	c.rotateQueue(m, index)
}

// rotateQueue removes a message from the queue when it has no more packets to send. After every
// messageTurn packets, it moves the message behind the others.
func (c *Context) rotateQueue(m *message, index uint32) {
	switch {
	case m.sent == m.packets:
		c.queue.remove(m)
	case m.sent/messageTurn != index/messageTurn && m.next != nil:
		c.queue.remove(m)
		c.queue.pushBack(m)
	}
}

// sendRead asks for several packets of a read at once.
func (c *Context) sendRead(m *message, now time.Duration) {
	index := m.sent
	n := min(int(m.packets-m.sent), wire.MaxSegments, max((c.window-c.underWay)/int(c.t.limits.cost(m.mtu)), 1), maxWindow-c.span())
	first := c.next
	for range n {
		psn := c.assignPSN(m, slotInFlight)
		c.noteSent(psn, c.slot(psn), now)
	}
	c.sendReadRequest(m, first, index, uint16(n))
	c.rotateQueue(m, index)
}

func (c *Context) sendReadRequest(m *message, psn, index uint32, n uint16) {
	p := c.request(wire.SRDReadRequest, m, psn)
	p.RETH = wire.RETH{VA: m.remoteAddr, RKey: m.rkey, Length: m.length}
	p.Offset = index * m.mtu
	p.Segments = wire.Segments{Size: uint16(m.mtu), Count: n}
	c.out.Send(p, nil, 0)
}

// noteSent notes that a packet leaves.
func (c *Context) noteSent(psn uint32, s *slot, now time.Duration) {
	s.state, s.sentAt = slotInFlight, now
	s.tries++
	c.push(&c.sent[s.kind], psn, s)
	c.inFlight++
	c.underWay += int(s.cost)
	c.spray.departed++
	if c.inFlight == 1 {
		c.startTimer(now)
	}
}

// sendLost repeats the packet that was found lost first.
func (c *Context) sendLost(now time.Duration) {
	c.overdue = false
	psn := c.lost.first
	c.unlink(&c.lost, c.slot(psn))
	c.transmit(psn, now)
}

// sendHeld sends the held packet that is due.
func (c *Context) sendHeld(now time.Duration) { c.transmit(c.sprayRelease(), now) }

// transmit sends a packet that is in no list, unless its request is complete.
func (c *Context) transmit(psn uint32, now time.Duration) {
	s := c.slot(psn)
	s.state = slotHeld
	m := s.msg
	if s.live() && s.tries >= maxTries {
		c.t.counters.Timeouts++
		m.fail(codeUnresponsive)
	}
	if !s.live() {
		c.drop(psn, s)
		c.advance()
		return
	}
	if s.tries > 0 {
		c.t.counters.Repeated++
	}
	if m.op == verbs.OpRead {
		c.noteSent(psn, s, now)
		c.sendReadRequest(m, psn, s.index, 1)
		return
	}
	off, n := s.index*m.mtu, m.size(s.index)
	pieces, ok := m.segs.Gather(c.t.pieces[:0], off, n, &c.t.bounce)
	if !ok { // a region has been closed since
		c.failUnreadable(psn, s)
		return
	}
	if cap(pieces) > cap(c.t.pieces) {
		c.t.pieces = pieces
	}
	op := wire.SRDWrite
	switch m.op {
	case verbs.OpSend:
		op = wire.SRDSend
	case verbs.OpSendImm:
		op = wire.SRDSendImm
	case verbs.OpWriteImm:
		if s.index == m.packets-1 {
			op = wire.SRDWriteImm
		}
	}
	p := c.request(op, m, psn)
	p.SRDETH.Unsolicited = m.qp.unsolicited
	p.RETH = wire.RETH{VA: m.remoteAddr, RKey: m.rkey, Length: m.length}
	p.Offset, p.Imm, p.Pad = off, m.imm, uint8(-n&3)
	c.noteSent(psn, s, now)
	if !c.out.Send(p, pieces, int(n)) {
		c.failUnreadable(psn, s)
	}
}

// failUnreadable fails the message of a packet whose memory cannot be read.
func (c *Context) failUnreadable(psn uint32, s *slot) {
	s.msg.fail(codeInvalidLKey)
	c.drop(psn, s)
	c.advance()
}

// request makes a request packet.
func (c *Context) request(op wire.Opcode, m *message, psn uint32) *wire.Packet {
	p := c.newPacket(op, m.remoteQPN)
	p.PSN = psn
	p.SRDETH.Floor = uint16(wire.PSNDiff(psn, c.una))
	p.DETH = wire.DETH{QKey: m.remoteQKey, SrcQP: m.qp.num}
	return p
}

// abort fails the requests that have been sent, at least in part. If all is set, it fails the
// others too.
func (c *Context) abort(why code, all bool) {
	for psn := c.una; psn != c.next; psn = wire.PSNAdd(psn, 1) {
		s := c.slot(psn)
		if s.state == slotDone {
			continue
		}
		if s.live() {
			s.msg.fail(why)
		}
		c.drop(psn, s)
	}
	c.spray.n = 0
	c.advance()
	for _, l := range []*messageList{&c.queue, &c.waiting} {
		for m := l.first; m != nil; {
			next := m.next
			if all || m.sent > 0 {
				m.fail(why)
			}
			m = next
		}
	}
}

// resumeWaiting queues messages again that have waited long enough for a receive of the peer.
func (c *Context) resumeWaiting(now time.Duration) {
	var next time.Duration
	for m := c.waiting.first; m != nil; {
		after := m.next
		switch {
		case m.waitUntil <= now:
			c.waiting.remove(m)
			c.queue.pushBack(m)
		case next == 0 || m.waitUntil < next:
			next = m.waitUntil
		}
		m = after
	}
	c.waitUntil = next
}
