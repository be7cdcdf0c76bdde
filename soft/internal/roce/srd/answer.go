package srd

import (
	"encoding/binary"
	"math/bits"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/dma"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// maxAckWords is the largest number of 64-bit words in an acknowledgement. They hold a bit for
// each packet, from the acknowledgement's sequence number on, rounded down to a whole word.
const maxAckWords = windowBits / 64

// receiveAnswer handles the peer's answers to requests.
func (c *Context) receiveAnswer(p *wire.Packet, now time.Duration) {
	before := c.una
	progress := false
	switch p.Opcode {
	case wire.SRDAcknowledge:
		progress = c.receiveAck(p, now)
	case wire.SRDNak:
		progress = c.receiveNak(p, now)
	case wire.SRDReadResponse:
		progress = c.receiveResponse(p, now)
	}
	if !progress {
		return
	}
	c.grow()
	c.findLost()
	c.advance()
	if c.una != before || c.inFlight > 0 {
		c.startTimer(now)
	}
}

// outstandingSlot returns the slot of a sequence number, or nil if no answer to it is awaited.
func (c *Context) outstandingSlot(psn uint32) *slot {
	if wire.PSNDiff(psn, c.una) < 0 || wire.PSNDiff(psn, c.next) >= 0 {
		return nil
	}
	s := c.slot(psn)
	if s.state == slotDone || s.tries == 0 {
		return nil
	}
	return s
}

// receiveAck handles an acknowledgement. All packets before its sequence number, except reads,
// have been executed, and so have those whose bit is set.
func (c *Context) receiveAck(p *wire.Packet, now time.Duration) bool {
	words := len(p.Payload) / 8
	base := wire.PSNDiff(p.PSN, c.una)
	if len(p.Payload)%8 != 0 || words > maxAckWords || wire.PSNDiff(p.PSN, c.next) > 0 {
		c.t.counters.Unexpected++
		return false
	}
	finished, timed := 0, time.Duration(-1)
	take := func(psn uint32) {
		if s := c.outstandingSlot(psn); s != nil && s.kind == kindData {
			if s.tries == 1 {
				timed = max(timed, s.sentAt)
			}
			c.noteDone(psn, s, now)
			finished++
		}
	}
	if base > 0 {
		for psn := c.una; psn != p.PSN; psn = wire.PSNAdd(psn, 1) {
			if psn&63 == 0 && *c.done.word(psn) == ^uint64(0) && wire.PSNDiff(p.PSN, psn) >= 64 {
				psn = wire.PSNAdd(psn, 63)
				continue
			}
			if !c.done.has(psn) {
				take(psn)
			}
		}
	}
	first := p.PSN &^ 63
	for i := range words {
		psn := wire.PSNAdd(first, 64*i)
		fresh := binary.BigEndian.Uint64(p.Payload[8*i:]) &^ *c.done.word(psn)
		for fresh != 0 {
			bit := bits.TrailingZeros64(fresh)
			fresh &= fresh - 1
			take(wire.PSNAdd(psn, bit))
		}
	}
	if timed >= 0 {
		c.sample(now - timed)
	}
	return finished > 0
}

// receiveNak handles the refusal of one packet, which was not executed and never will be.
func (c *Context) receiveNak(p *wire.Packet, now time.Duration) bool {
	s := c.outstandingSlot(p.PSN)
	if s == nil {
		c.t.counters.Unexpected++
		return false
	}
	c.t.counters.NaksReceived++
	why := nakCode(p)
	m, live, index := s.msg, s.live(), s.index
	if s.tries == 1 {
		c.sample(now - s.sentAt)
	}
	c.noteArrival(s, now)
	c.drop(p.PSN, s)
	if !live {
		return true
	}
	if why != codeNotReady || m.list != nil || m.op == verbs.OpRead || m.op == verbs.OpWrite {
		m.fail(why)
		return true
	}
	c.t.counters.NotReadyNaks++
	if m.rnrRetries == 0 {
		c.t.counters.RNRExceeded++
		m.fail(codeNotReady)
		return true
	}
	if m.rnrRetries != notReadyForEver {
		m.rnrRetries--
	}
	m.sent = index // to be sent again under another sequence number
	m.waitUntil = now + wire.RNRTimer(p.AETH.Syndrome.Timer())<<min(m.rnrTries, maxNotReadyDoublings)
	m.rnrTries = min(m.rnrTries+1, maxNotReadyDoublings)
	c.waiting.pushBack(m)
	if c.waitUntil == 0 || m.waitUntil < c.waitUntil {
		c.waitUntil = m.waitUntil
	}
	return true
}

// receiveResponse handles one response to a read.
func (c *Context) receiveResponse(p *wire.Packet, now time.Duration) bool {
	s := c.outstandingSlot(p.PSN)
	if s == nil || s.kind != kindRead {
		c.t.counters.Unexpected++ // or a duplicate
		return false
	}
	if s.live() {
		m := s.msg
		if len(p.Payload) != int(m.size(s.index)) {
			c.t.counters.Unexpected++
			return false
		}
		if m.segs.Scatter(s.index*m.mtu, p.Payload) != dma.NoFault {
			m.fail(codeInvalidLKey)
		}
	}
	if s.tries == 1 {
		c.sample(now - s.sentAt)
	}
	c.noteDone(p.PSN, s, now)
	return true
}
