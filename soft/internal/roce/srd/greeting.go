package srd

import (
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

// greeting is the part of a context that finds out which device is at the peer's address.
type greeting struct {
	greeted  bool   // the peer's token is that of the device that is there now
	ask      bool   // SRDHello is to be sent
	asking   bool   // it has been sent
	named    uint32 // the token that it named as the peer's; 0: none was known
	nonce    nonce
	askedAt  time.Duration
	repeatAt time.Duration // when the peer ought to have answered
	asked    uint          // how often, since asking began
	ignored  time.Duration // how long it has not been answered, counted like silent
}

// nonce is what a reply to SRDHello repeats: what is in the place of the sequence number, and of
// SRDETH.Floor. The 40 bits are the proof of whoever replies that the question has reached him,
// so nobody is to guess them while it is under way.
type nonce struct {
	number uint32
	more   uint16
}

// question has the peer asked for its token, but not in quick succession.
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

// helloTimeout asks again, or gives the peer up: that it sends requests of its own is no
// answer.
func (c *Context) helloTimeout() {
	c.ignored += c.repeatAt - c.askedAt
	switch {
	case c.ignored < patience || c.asked <= minRepetitions:
		c.ask = true
	case c.greeted: // its token was in question, yet it answers requests
		c.asking = false
	default:
		c.giveUp()
	}
}

// receiveReply takes the peer's token.
func (c *Context) receiveReply(port uint16, p *wire.Packet, now time.Duration) {
	if !c.has(p.SRDETH.Target) {
		c.t.counters.Unexpected++
		return
	}
	if !c.asking || c.nonce != (nonce{p.PSN, p.SRDETH.Floor}) {
		// The peer says unasked that it has another token. Anybody on the way can
		// say that, and it may be an old packet.
		if p.SRDETH.Source != c.peer {
			c.question(now)
		}
		return
	}
	c.asking, c.ask = false, false
	switch {
	case c.peer == 0 || c.peer == p.SRDETH.Source:
	case c.named != c.peer: // it has been heard since it was asked, and may know that token too
		c.question(now)
		return
	default:
		c.restarted()
	}
	c.peer, c.sendPort, c.greeted = p.SRDETH.Source, port, true
	c.hear(p, now)
	c.expired = 0
}

// restarted fails what has been sent to a peer that is another device now: it may have
// been executed. What has not been sent goes to the new one, whose packets have other
// sequence numbers.
func (c *Context) restarted() {
	c.t.counters.Restarts++
	c.abort(codeAborted, false)
	c.responder = responder{}
}
