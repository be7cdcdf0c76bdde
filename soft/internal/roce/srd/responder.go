package srd

import (
	"encoding/binary"
	"math/bits"

	"github.com/verbena-rdma/verbena/soft/internal/roce/dma"
	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// responder is the part of a context that executes requests.
type responder struct {
	base         uint32 // oldest request that has not been executed
	high         uint32 // the one after the latest request that has been executed
	synchronized bool   // base is known
	executed     window
	refused      *[windowBits]code // the reasons of refused requests, by sequence number; nil: none
	ackDue       bool

	granted transport.GrantedKeys

	naks  transport.Ring[nak]
	reads transport.Ring[readJob]
}

const (
	// maxNaks and maxReads bound the answers that wait to be sent. A request that finds no
	// place is dropped, and the peer repeats it. maxReads also bounds how much is sent to a
	// peer that asks for much and receives nothing.
	maxNaks  = 64
	maxReads = 64
)

// nak is a refusal that waits to be sent.
type nak struct {
	psn, qpn uint32
	why      code
}

// readJob is a read request that waits to be answered. Each response checks anew what the peer
// may read.
type readJob struct {
	psn, qpn uint32
	target   uint32 // number of the queue pair that is read from
	reth     wire.RETH
	off      uint32
	size     uint32
	left     uint16 // a bit for each segment that has not been sent
}

// maxBaseJump is how far the oldest request that a peer may still repeat can be ahead of the
// oldest missing one. The peer has given up the requests in between. It takes more than an
// hour without any arrival to give up 2^20 packets.
const maxBaseJump = 1 << 20

func floor(p *wire.Packet) uint32 { return wire.PSNAdd(p.PSN, -int(p.SRDETH.Floor)) }

// tooFarAhead reports whether a packet is more than maxBaseJump ahead: the peer has lost
// synchronization, or pretends so. The peer can then get a new context, with another token.
func (c *Context) tooFarAhead(p *wire.Packet) bool {
	return c.synchronized && wire.PSNDiff(floor(p), c.base) > maxBaseJump
}

// receiveRequest executes a request, unless it was executed before.
func (c *Context) receiveRequest(p *wire.Packet) {
	floor := floor(p)
	if !c.synchronized {
		c.synchronized, c.base, c.high = true, floor, floor
	} else if wire.PSNDiff(floor, c.base) > 0 {
		c.moveBase(floor)
	}
	if p.Opcode == wire.SRDReadRequest {
		c.receiveRead(p)
		return
	}
	switch d := wire.PSNDiff(p.PSN, c.base); {
	case d < 0 || d < windowBits && c.executed.has(p.PSN):
		c.t.counters.Duplicates++
		c.ackDue = true
		return
	case d > maxWindow:
		c.t.counters.OutOfWindow++
		return
	}
	if c.refused != nil {
		if why := c.refused[p.PSN%windowBits]; why != codeOK {
			c.t.counters.Duplicates++
			c.queueNak(p, why)
			return
		}
	}
	if p.Opcode.HasRETH() && !c.admits(&p.RETH) {
		return
	}
	if why := c.execute(p); why != codeOK {
		// A refused packet must not be executed later: the peer may have given it up, or sent
		// it again under another number.
		if c.refused == nil {
			c.refused = new([windowBits]code)
		}
		c.refused[p.PSN%windowBits] = why
		c.refuse(p, why)
		return
	}
	c.executed.set(p.PSN)
	c.ackDue = true
	if wire.PSNDiff(p.PSN, c.high) >= 0 {
		c.high = wire.PSNAdd(p.PSN, 1)
	}
	c.skipExecuted()
}

// moveBase forgets the requests before floor, which the peer no longer sends.
func (c *Context) moveBase(floor uint32) {
	// The bits before base in its word are set too.
	c.executed.clearRange(c.base&^63, floor)
	if c.refused != nil {
		if n := int(wire.PSNDiff(floor, c.base)); n >= windowBits {
			c.refused = nil
		} else {
			for i := range n {
				c.refused[wire.PSNAdd(c.base, i)%windowBits] = codeOK
			}
		}
	}
	c.base = floor
	if wire.PSNDiff(c.high, c.base) < 0 {
		c.high = c.base
	}
	c.skipExecuted()
}

// skipExecuted moves base past requests that have been executed.
func (c *Context) skipExecuted() {
	for {
		w := c.executed.word(c.base)
		n := bits.TrailingZeros64(^(*w >> (c.base & 63)))
		if room := 64 - int(c.base&63); n < room {
			c.base = wire.PSNAdd(c.base, n)
			return
		} else {
			*w = 0
			c.base = wire.PSNAdd(c.base, room)
		}
	}
}

// refuse counts a refusal and queues a NAK.
func (c *Context) refuse(p *wire.Packet, why code) {
	n := &c.t.counters
	n.Refused++
	switch why {
	case codeBadAddress:
		n.Access++
		if c.t.cfg.Refused != nil && !c.granted.Has(p.RETH.RKey) {
			c.t.cfg.Refused(c.addr)
		}
	case codeNotReady:
		n.NotReady++
	}
	c.queueNak(p, why)
}

func (c *Context) queueNak(p *wire.Packet, why code) {
	if c.naks.Depth() == 0 {
		c.naks = transport.NewRing[nak](maxNaks)
	}
	if place := c.naks.Push(); place != nil {
		*place = nak{psn: p.PSN, qpn: p.DETH.SrcQP, why: why}
	}
}

// admits reports whether a request may use its key. If not, the request is dropped as if it
// had been lost, and the peer repeats it. The key of an empty range is not checked.
func (c *Context) admits(h *wire.RETH) bool {
	if c.t.cfg.Admits == nil || h.Length == 0 || c.granted.Has(h.RKey) || c.t.cfg.Admits(c.addr) {
		return true
	}
	c.t.counters.AccessesLimited++
	return false
}

// target returns the queue pair that a request is for, or nil. A sender with a wrong Q_Key
// gets the same answer as if the queue pair did not exist.
func (t *Transport) target(p *wire.Packet) *QP {
	q := t.qp(p.DestQP)
	if q == nil || !q.receiving() {
		return nil
	}
	if q.attr.QKey != p.DETH.QKey {
		t.counters.QKey++
		return nil
	}
	return q
}

// execute executes a send or write, or returns why not. A refused request has had no effect,
// except with codeBadStatus: then local memory could not be written.
func (c *Context) execute(p *wire.Packet) code {
	q := c.t.target(p)
	if q == nil {
		return codeBadQPN
	}
	if len(p.Payload) > int(c.t.cfg.MTU) || p.Opcode.HasRETH() && p.RETH.Length > MaxRDMA {
		return codeBadLength
	}
	if p.Opcode == wire.SRDSend || p.Opcode == wire.SRDSendImm {
		return q.receiveSend(c, p)
	}
	if uint64(p.Offset)+uint64(len(p.Payload)) > uint64(p.RETH.Length) {
		return codeBadAddress
	}
	imm := p.Opcode == wire.SRDWriteImm
	if imm && p.SRDETH.Unsolicited != q.unsolicited {
		return codeFeatureMismatch
	}
	// Only the completion queue bounds writes that take no receive. Peers must not overrun it,
	// nor take the places of requests that the queue pair has posted.
	if imm && (q.unsolicited && !q.recvCQ.Room(q.reservedCompletions()) || !q.unsolicited && !q.takeReceive()) {
		return codeNotReady
	}
	if c.number == verbs.NoAH {
		return codeUnknownPeer
	}
	allowed, fault := c.t.cfg.Memory.WritePart(q.domain, p.RETH, p.Offset, p.Payload)
	if !allowed {
		return codeBadAddress
	}
	if fault != dma.NoFault {
		return codeBadStatus
	}
	c.granted.AddRange(&p.RETH)
	if imm {
		q.completeReceive(c, p, verbs.WCRecvWriteImm, p.RETH.Length)
	}
	return codeOK
}

// receiveRead queues the responses to a read request. Executing it twice does no harm, so it
// is not remembered; its responses acknowledge it.
func (c *Context) receiveRead(p *wire.Packet) {
	n := uint32(p.Segments.Count)
	size := uint32(p.Segments.Size)
	q := c.t.target(p)
	switch {
	case q == nil:
		c.refuse(p, codeBadQPN)
		return
	case size > uint32(c.t.cfg.MTU) || p.RETH.Length > MaxRDMA:
		c.refuse(p, codeBadLength)
		return
	case c.number == verbs.NoAH:
		c.refuse(p, codeUnknownPeer)
		return
	}
	if !c.admits(&p.RETH) {
		return
	}
	if !c.t.cfg.Memory.Readable(q.domain, p.RETH) {
		c.refuse(p, codeBadAddress)
		return
	}
	c.granted.AddRange(&p.RETH)
	if c.reads.Depth() == 0 {
		c.reads = transport.NewRing[readJob](maxReads)
	}
	job := c.reads.Push()
	if job == nil {
		c.t.counters.ReadsDropped++
		return
	}
	*job = readJob{
		psn: p.PSN, qpn: p.DETH.SrcQP, target: q.num, reth: p.RETH, off: p.Offset, size: size, left: uint16(1<<n - 1),
	}
}

// sendAnswers sends at most budget packets that answer the peer's requests, and returns the
// rest of the budget.
func (c *Context) sendAnswers(budget int) int {
	for budget > 0 && c.naks.Len() > 0 {
		c.sendNak(c.naks.Pop())
		budget--
	}
	if c.ackDue && budget > 0 {
		c.ackDue = false
		c.sendAck()
		budget--
	}
	for budget > 0 && c.reads.Len() > 0 {
		c.sendReadResponse(c.reads.First())
		budget--
	}
	return budget
}

func (c *Context) sendNak(n *nak) {
	p := c.newPacket(wire.SRDNak, n.qpn)
	p.PSN, p.AETH = n.psn, n.why.aeth()
	c.out.Send(p, nil, 0)
}

// sendAck reports which requests have been executed.
func (c *Context) sendAck() {
	p := c.newPacket(wire.SRDAcknowledge, 0)
	p.PSN = c.base
	words := 0
	if first := c.base &^ 63; wire.PSNDiff(c.high, c.base) > 0 {
		words = min(int(wire.PSNDiff(c.high, first)+63)/64, maxAckWords)
		for i := range words {
			binary.BigEndian.PutUint64(c.t.words[8*i:], *c.executed.word(wire.PSNAdd(first, 64*i)))
		}
	}
	c.t.one[0] = c.t.words[:8*words]
	c.out.Send(p, c.t.one[:], 8*words)
}

// sendReadResponse sends one segment of a read, at random from those that are left.
func (c *Context) sendReadResponse(job *readJob) {
	skip := int(c.spray.random.Uint64() % uint64(bits.OnesCount16(job.left)))
	left := job.left
	for range skip {
		left &= left - 1
	}
	i := bits.TrailingZeros16(left)
	job.left &^= 1 << i
	off := job.off + uint32(i)*job.size
	n := min(job.size, job.reth.Length-off)
	data, why := c.readable(job, off, n)
	psn, qpn := wire.PSNAdd(job.psn, i), job.qpn
	if job.left == 0 {
		c.reads.Pop()
	}
	if why != codeOK {
		c.t.counters.Refused++
		c.sendNak(&nak{psn, qpn, why})
		return
	}
	p := c.newPacket(wire.SRDReadResponse, qpn)
	p.PSN, p.Pad = psn, uint8(-n&3)
	c.t.one[0] = data
	if !c.out.Send(p, c.t.one[:], int(n)) {
		c.t.counters.Refused++
		c.sendNak(&nak{psn, qpn, codeBadStatus})
	}
}

// readable returns the bytes of one response, or why the peer may no longer read them.
func (c *Context) readable(job *readJob, off, n uint32) ([]byte, code) {
	q := c.t.qp(job.target)
	if q == nil || !q.receiving() {
		return nil, codeBadQPN
	}
	b, ok := c.t.cfg.Memory.ReadPart(q.domain, job.reth, off, n, &c.t.bounce)
	if !ok {
		return nil, codeBadAddress
	}
	return b, codeOK
}
