package srd

import (
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

// greeting is the part of a context that learns the peer's token, and so which device is at
// the peer's address.
type greeting struct {
	greeted  bool   // the peer's token is known to be current
	ask      bool   // SRDHello must be sent
	asking   bool   // SRDHello was sent and not yet answered
	named    uint32 // the peer token that SRDHello named; 0: none was known
	nonce    nonce
	askedAt  time.Duration
	repeatAt time.Duration // when the peer should have answered
	asked    uint          // SRDHellos sent since asking began
	ignored  time.Duration // how long SRDHello has been unanswered, counted like silent
}

// nonce is the random number of an SRDHello, in the fields of the sequence number and of
// SRDETH.Floor. The reply repeats it. Its 40 bits prove that the SRDHello has reached the
// sender of the reply, so nobody must be able to guess them while it is under way.
type nonce struct {
	number uint32
	more   uint16
}

// question asks the peer for its token, but not in quick succession.
func (c *Context) question(now time.Duration) {
	if c.asking && (c.helloTimed() || now < c.askedAt+initialTimeout) {
		return
	}
	c.ask = true
}

// helloTimed reports whether the timer of SRDHello runs.
func (c *Context) helloTimed() bool { return c.asking && !c.ask && c.outstanding > 0 }

// sendHello asks the peer for its token.
func (c *Context) sendHello(now time.Duration) {
	if !c.asking {
		c.asked, c.ignored = 0, 0
	}
	if !c.asking || c.named != c.peer {
		c.nonce, c.named = nonce{c.t.cfg.Random() & wire.PSNMask, uint16(c.t.cfg.Random())}, c.peer
	}
	c.ask, c.asking, c.askedAt = false, true, now
	c.repeatAt = now + c.timeoutAfter(c.asked)
	c.asked++
	p := c.begin(wire.SRDHello, 0)
	p.PSN, p.SRDETH.Floor = c.nonce.number, c.nonce.more
	c.out.Send(p, nil, 0)
}

// helloTimeout asks again, or gives the peer up. The peer's own requests do not count as an
// answer.
func (c *Context) helloTimeout() {
	c.ignored += c.repeatAt - c.askedAt
	switch {
	case c.ignored < patience || c.asked <= minRepetitions:
		c.ask = true
	case c.greeted: // its token was in doubt, but it answers requests
		c.asking = false
	default:
		c.giveUp()
	}
}

// receiveReply handles SRDHelloReply, which carries the peer's token.
func (c *Context) receiveReply(port uint16, p *wire.Packet, now time.Duration) {
	if !c.has(p.SRDETH.Target) {
		c.t.counters.Unexpected++
		return
	}
	if !c.asking || c.nonce != (nonce{p.PSN, p.SRDETH.Floor}) {
		// The peer announces a token unasked. Anybody on the path can forge that, and the
		// packet may be old, so ask if the token is a new one.
		if p.SRDETH.Source != c.peer {
			c.question(now)
		}
		return
	}
	c.asking, c.ask = false, false
	switch {
	case c.peer == 0 || c.peer == p.SRDETH.Source:
	case c.named != c.peer: // c.peer was learned after SRDHello was sent, and may be current too
		c.question(now)
		return
	default:
		c.restarted()
	}
	c.peer, c.sendPort, c.greeted = p.SRDETH.Source, port, true
	c.hear(p, now)
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
