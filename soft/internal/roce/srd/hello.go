package srd

import (
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

// hello is the part of a context that learns the peer's token, and so which device is at
// the peer's address.
type hello struct {
	confirmed       bool   // the peer's token is known to be current
	helloDue        bool   // SRDHello must be sent
	helloPending    bool   // SRDHello was sent and not yet answered
	helloToken      uint32 // the peer token that SRDHello named; 0: none was known
	nonce           nonce
	helloAt         time.Duration
	helloTimeoutAt  time.Duration // when the peer should have answered
	helloCount      uint          // SRDHellos sent since asking began
	helloUnanswered time.Duration // how long SRDHello has been unanswered, counted like silent
}

// nonce is the random number of an SRDHello, in the fields of the sequence number and of
// SRDETH.Floor. The reply repeats it. Its 40 bits prove that the SRDHello has reached the
// sender of the reply, so nobody must be able to guess them while it is under way.
type nonce struct {
	number uint32
	floor  uint16
}

// requestToken asks the peer for its token, but not in quick succession.
func (c *Context) requestToken(now time.Duration) {
	if c.helloPending && (c.helloTimerRuns() || now < c.helloAt+initialTimeout) {
		return
	}
	c.helloDue = true
}

// helloTimerRuns reports whether the timer of SRDHello runs.
func (c *Context) helloTimerRuns() bool { return c.helloPending && !c.helloDue && c.outstanding > 0 }

// sendHello asks the peer for its token.
func (c *Context) sendHello(now time.Duration) {
	if !c.helloPending {
		c.helloCount, c.helloUnanswered = 0, 0
	}
	if !c.helloPending || c.helloToken != c.peer {
		c.nonce, c.helloToken = nonce{c.t.cfg.Random() & wire.PSNMask, uint16(c.t.cfg.Random())}, c.peer
	}
	c.helloDue, c.helloPending, c.helloAt = false, true, now
	c.helloTimeoutAt = now + c.timeoutAfter(c.helloCount)
	c.helloCount++
	p := c.newPacket(wire.SRDHello, 0)
	p.PSN, p.SRDETH.Floor = c.nonce.number, c.nonce.floor
	c.out.Send(p, nil, 0)
}

// helloTimeout asks again, or gives the peer up. The peer's own requests do not count as an
// answer.
func (c *Context) helloTimeout() {
	c.helloUnanswered += c.helloTimeoutAt - c.helloAt
	switch {
	case c.helloUnanswered < peerDeadTimeout || c.helloCount <= minRepetitions:
		c.helloDue = true
	case c.confirmed: // its token was not confirmed, but it answers requests
		c.helloPending = false
	default:
		c.giveUp()
	}
}

// receiveReply handles SRDHelloReply, which carries the peer's token.
func (c *Context) receiveReply(port uint16, p *wire.Packet, now time.Duration) {
	if !c.isOwnToken(p.SRDETH.Target) {
		c.t.counters.Unexpected++
		return
	}
	if !c.helloPending || c.nonce != (nonce{p.PSN, p.SRDETH.Floor}) {
		// The peer announces a token unasked. Anybody on the path can forge that, and the
		// packet may be old, so ask if the token is a new one.
		if p.SRDETH.Source != c.peer {
			c.requestToken(now)
		}
		return
	}
	c.helloPending, c.helloDue = false, false
	switch {
	case c.peer == 0 || c.peer == p.SRDETH.Source:
	case c.helloToken != c.peer: // c.peer was learned after SRDHello was sent, and may be current too
		c.requestToken(now)
		return
	default:
		c.restarted()
	}
	c.peer, c.sendPort, c.confirmed = p.SRDETH.Source, port, true
	c.noteReceived(p, now)
	c.expired = 0
}

// restarted fails the requests that were sent before another device took the peer's place:
// they may have been executed. Requests not yet sent go to the new device. Its packets have
// other sequence numbers, so the responder starts anew.
func (c *Context) restarted() {
	c.t.counters.Restarts++
	c.abort(codeAborted, false)
	c.responder = responder{}
}
