package srd

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/ref"
	"github.com/verbena-rdma/verbena/soft/internal/roce/timers"
	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// Context is this device's state for one peer device.
type Context struct {
	t      *Transport
	addr   Address
	out    transport.Output
	closed bool
	known  *ref.Ref[Context] // for address handles
	number uint16            // of the address handles that lead to the peer; verbs.NoAH: none
	mtu    uint32            // the largest payload in both directions

	// own is this end's token for the peer. peer is the peer's token for this end, 0 until it
	// is known.
	own, peer uint32
	// sendPort is the port that the peer sends from. It is learned together with the peer's
	// token, and only from a packet with a token or nonce that was sent to the peer's address.
	sendPort     uint16
	epoch        uint64        // the epoch in which the context was made
	receivedAt   time.Duration // when the peer last sent something; at first, when the context was made
	usedAt       time.Duration // when this end last had something to send
	everReceived bool          // the peer has sent something

	hello
	requester
	responder

	// Places in the lists of the device.
	readyNode, allNode fifo.Node[*Context]
	checkAt            time.Duration // when to check whether the context is still used
	// timer: it waits for an answer, or for a receive of the peer. Idle contexts have none.
	timer timers.Timer[*Context]
}

func newContext(t *Transport, a Address, own uint32, n uint64, now time.Duration) *Context {
	c := &Context{
		t: t, addr: a, own: own, out: t.cfg.Output(a), number: t.cfg.Number(a.Peer), mtu: uint32(t.cfg.MTU),
		epoch: epoch(now), receivedAt: now, usedAt: now,
	}
	c.known = ref.To(c)
	c.readyNode.Value, c.allNode.Value, c.timer.Owner = c, c, c
	psn := t.cfg.Random() & wire.PSNMask
	c.una, c.next, c.recoverAt = psn, psn, psn
	c.sent = [2]slotList{{none, none}, {none, none}}
	c.lost = slotList{none, none}
	c.window = t.limits.start
	c.spray.random = *rand.NewPCG(t.cfg.Seed, n)
	return c
}

// Output returns the Output to the peer, as made by Config.Output.
func (c *Context) Output() transport.Output { return c.out }

// isOwnToken reports whether a token is one of this end's for the peer. The peer may have received
// one before the context was made.
func (c *Context) isOwnToken(token uint32) bool {
	return token == c.own || c.t.issued(c.addr, token, c.epoch, validEpochs)
}

// setOwnToken sets the token that packets of the context carry to the one that the peer knows: the
// peer would take another token for that of another device. A forgotten context has the token
// 0.
func (c *Context) setOwnToken(token uint32) {
	if token == c.own {
		return
	}
	if c.t.byToken[c.own] == c {
		delete(c.t.byToken, c.own)
	}
	if c.own = token; token != 0 {
		c.t.byToken[token] = c
	}
}

// isFor reports whether c is the context with the peer at a. c may be nil.
func (c *Context) isFor(a *Address) bool {
	return c != nil && c.addr.Local == a.Local && c.addr.Peer == a.Peer
}

// noteReceived notes that the peer is there. The packet has carried the tokens of both ends.
func (c *Context) noteReceived(p *wire.Packet, now time.Duration) {
	c.receivedAt, c.everReceived = now, true
	c.mtu = min(p.SRDETH.MTUBytes(), uint32(c.t.cfg.MTU))
}

// newPacket makes a packet of the context, with the headers that all of them have.
func (c *Context) newPacket(op wire.Opcode, qpn uint32) *wire.Packet {
	p := &c.t.packet
	*p = wire.Packet{Opcode: op, PKey: wire.DefaultPKey, MigReq: true, DestQP: qpn}
	p.SRDETH = wire.SRDETH{Source: c.own, Target: c.peer, MTU: c.t.mtuCode}
	return p
}

// send sends at most budget packets that are due. It returns the rest of the budget, and
// reports whether more could leave at once.
func (c *Context) send(now time.Duration, budget int) (left int, more bool) {
	if c.peer != 0 {
		budget = c.sendAnswers(budget)
	}
	budget = c.sendRequests(now, budget)
	return budget, budget <= 0
}

// deadline returns when timeout must be called; zero means never.
func (c *Context) deadline() time.Duration {
	at := never
	if c.inFlight > 0 {
		at = c.timerAt
	}
	if c.helloTimerRuns() {
		at = min(at, c.helloTimeoutAt)
	}
	if c.waiting.first != nil {
		at = min(at, c.waitUntil)
	}
	if at == never {
		return 0
	}
	return at
}

// never is later than any deadline.
const never = time.Duration(math.MaxInt64)

// timeout handles the timers that are due.
func (c *Context) timeout(now time.Duration) {
	if c.waiting.first != nil && c.waitUntil <= now {
		c.resumeWaiting(now)
	}
	if c.helloTimerRuns() && c.helloTimeoutAt <= now {
		c.helloTimeout()
	}
	if c.inFlight > 0 && c.timerAt <= now {
		c.peerTimeout(now)
	}
	c.t.activate(c)
}

// source returns how a completion names the peer: by the number of its address handles, or by
// its GID if there are none.
func (c *Context) source() (number uint16, gid verbs.GID) {
	if c.number != verbs.NoAH {
		return c.number, verbs.GID{}
	}
	return verbs.NoAH, verbs.GIDFromAddr(c.addr.Peer.Addr())
}
