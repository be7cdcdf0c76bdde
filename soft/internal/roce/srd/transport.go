package srd

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/ref"
	"github.com/verbena-rdma/verbena/soft/internal/roce/timers"
	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// Address is the address of a peer device, and the local GID that reaches it.
type Address struct {
	Local int            // index of the local GID
	Peer  netip.AddrPort // address and port of the peer
}

// maxContexts is how many peers a device can know at a time.
const maxContexts = 1 << 16

// Config is what the queue pairs of a device share.
type Config struct {
	Memory *transport.Memory
	// Secret is the key of the tokens. Every device must have its own.
	Secret [32]byte
	// Seed determines the order in which packets leave.
	Seed uint64
	// MTU is the largest payload of a packet.
	MTU verbs.MTU
	// Window is how many bytes may be under way to a peer.
	Window int
	// Output makes the Output to a peer.
	Output func(Address) transport.Output
	// Reply sends one packet without payload to a peer that has no context.
	Reply func(Address, *wire.Packet)
	// Number returns the number of the address handles that lead to an address, or verbs.NoAH.
	Number func(netip.AddrPort) uint16
	// Admits reports whether a peer may use a key that it was not granted before. Refused
	// notes that a key granted less than a request of the peer wanted. See transport.KeyGuard.
	// Nil: any key may be used.
	Admits  func(Address) bool
	Refused func(Address)
	// Random returns unpredictable numbers.
	Random func() uint32
}

// Transport is the SRD of one device: its contexts, and its queue pairs by number.
type Transport struct {
	cfg      Config
	mtuCode  uint8
	limits   windowLimits
	contexts map[Address]*Context
	byToken  map[uint32]*Context // by own token; if two contexts have the same, one of them
	opened   uint64
	last     *Context // the one looked up last
	qps      map[uint32]*QP
	lastQP   *QP
	ready    fifo.List[*Context] // those that have something to send, in order
	all      fifo.List[*Context] // all, in the order in which to check whether they are still used
	timers   timers.Heap[*Context]
	counters Counters

	// Scratch space for the packet that is being made.
	packet wire.Packet
	pieces [][]byte
	words  [maxAckWords * 8]byte
	one    [1][]byte
	bounce []byte // of transport.Memory.ReadPart, and of Segments.Gather
}

// New returns the transport of a device.
func New(cfg Config) *Transport {
	t := &Transport{
		cfg: cfg, contexts: make(map[Address]*Context), byToken: make(map[uint32]*Context), qps: make(map[uint32]*QP),
		limits: newLimits(cfg.Window, cfg.MTU),
	}
	for t.mtuCode = 1; 128<<t.mtuCode < int(cfg.MTU); t.mtuCode++ {
	}
	return t
}

// Counters returns the present counts.
func (t *Transport) Counters() Counters {
	c := t.counters
	c.Contexts = uint64(len(t.contexts))
	return c
}

// Find returns the context with a peer, or nil. token is this end's token for the peer, as a
// packet names it: a look-up by its 32 bits takes a fraction of the time of one by address.
func (t *Transport) Find(a *Address, token uint32) *Context {
	if t.last.isFor(a) {
		return t.last
	}
	c := t.byToken[token]
	if !c.isFor(a) {
		if c = t.contexts[*a]; c == nil {
			return nil
		}
	}
	t.last = c
	return c
}

var errNoRoom = errors.New("too many peers")

// open makes the context with a peer that has none.
func (t *Transport) open(a Address, own uint32, now time.Duration) (*Context, error) {
	if len(t.contexts) >= maxContexts {
		t.counters.NoRoom++
		return nil, fmt.Errorf("the device already has %d SRD peers, its limit; idle peers are removed after %v: %w: %w", maxContexts, idleTime, errNoRoom, verbs.ErrLimit)
	}
	t.opened++
	c := newContext(t, a, own, t.opened, now)
	t.contexts[a], t.byToken[own] = c, c
	t.checkLater(c, now)
	return c, nil
}

// context returns the context of an address handle, and makes it if there is none.
func (t *Transport) context(ah *AH, now time.Duration) (*Context, error) {
	if c := ah.known.Get(); c != nil {
		return c, nil
	}
	c := t.contexts[ah.address]
	if c == nil {
		var err error
		if c, err = t.open(ah.address, t.token(ah.address, epoch(now)), now); err != nil {
			return nil, err
		}
	}
	ah.known = c.known
	return c, nil
}

func (t *Transport) forget(c *Context) {
	c.closed = true
	c.known.End()
	delete(t.contexts, c.addr)
	c.setOwnToken(0)
	if t.last == c {
		t.last = nil
	}
	t.ready.Remove(&c.readyNode)
	t.all.Remove(&c.allNode)
	t.timers.Remove(&c.timer)
}

// SetNumber sets the number of the address handles that lead to an address, or verbs.NoAH when
// the last is gone.
func (t *Transport) SetNumber(locals int, peer netip.AddrPort, number uint16) {
	for i := range locals {
		if c := t.contexts[Address{i, peer}]; c != nil {
			c.number = number
		}
	}
}

// Receive handles an SRD packet that came from the given port of its sender. The caller has
// verified the checksum. c is what Find returns for the sender.
func (t *Transport) Receive(c *Context, from Address, port uint16, p *wire.Packet, now time.Duration) {
	switch p.Opcode {
	case wire.SRDHello:
		t.sendHelloReply(c, from, p, now)
	case wire.SRDHelloReply:
		if c == nil {
			t.counters.Unexpected++
			return
		}
		c.receiveReply(port, p, now)
	case wire.SRDAcknowledge, wire.SRDNak, wire.SRDReadResponse:
		switch {
		case c == nil || !c.isOwnToken(p.SRDETH.Target):
			t.counters.Stale++
			return
		case c.peer != p.SRDETH.Source:
			t.counters.Stale++
			c.requestToken(now)
		case c.sendPort != port:
			t.counters.WrongSource++
		default:
			c.setOwnToken(p.SRDETH.Target)
			c.noteReceived(p, now)
			c.noteAnswer(now)
			c.receiveAnswer(p, now)
		}
	default:
		if c = t.admit(c, from, port, p, now); c != nil {
			c.noteReceived(p, now)
			c.receiveRequest(p)
		}
	}
	if c != nil && !c.closed {
		t.activate(c)
	}
}

// admit returns the context that a request belongs to, or nil if it is refused.
func (t *Transport) admit(c *Context, from Address, port uint16, p *wire.Packet, now time.Duration) *Context {
	verified := c != nil && c.isOwnToken(p.SRDETH.Target) || c == nil && t.issued(from, p.SRDETH.Target, epoch(now), validEpochs)
	switch {
	case !verified:
		t.counters.Unverified++
		t.sendHelloReply(c, from, p, now)
		return nil
	case c == nil && t.target(p) == nil:
		t.refuseUnknownQP(from, p)
		return nil
	case c == nil && len(t.contexts) >= maxContexts/2: // the rest is for peers that this end sends to
		t.counters.NoRoom++
		return nil
	case c == nil:
		var err error
		if c, err = t.open(from, p.SRDETH.Target, now); err != nil {
			return nil
		}
		c.peer, c.sendPort, c.confirmed = p.SRDETH.Source, port, true
	case c.peer == 0:
		c.peer, c.sendPort = p.SRDETH.Source, port
	case c.peer != p.SRDETH.Source:
		// An old packet, or one of a device that has taken the peer's place.
		t.counters.Stale++
		c.requestToken(now)
		t.activate(c)
		return nil
	case c.sendPort != port:
		t.counters.WrongSource++
		return nil
	case c.tooFarAhead(p):
		t.counters.OutOfWindow++
		if epoch(now) >= c.epoch+validEpochs {
			c.abort(codeAborted, true)
			t.forget(c)
		}
		return nil
	}
	c.setOwnToken(p.SRDETH.Target)
	return c
}

// refuseUnknownQP refuses a request to a queue pair that does not exist, without a context for the
// peer: a host can use as many addresses as it likes.
func (t *Transport) refuseUnknownQP(from Address, to *wire.Packet) {
	t.counters.Refused++
	t.counters.UnknownQP++
	p := &t.packet
	*p = wire.Packet{Opcode: wire.SRDNak, PKey: wire.DefaultPKey, MigReq: true, DestQP: to.DETH.SrcQP, PSN: to.PSN}
	p.SRDETH = wire.SRDETH{Source: to.SRDETH.Target, Target: to.SRDETH.Source, MTU: t.mtuCode}
	p.AETH = codeBadQPN.aeth()
	t.cfg.Reply(from, p)
}

// sendHelloReply replies to a packet with the token that its sender should use. It stores nothing
// about an unknown sender, and the reply is no longer than the packet.
func (t *Transport) sendHelloReply(c *Context, from Address, to *wire.Packet, now time.Duration) {
	own := to.SRDETH.Target // the sender keeps its token as long as possible
	switch {
	case c != nil:
		if c.isOwnToken(own) {
			c.setOwnToken(own)
		}
		own = c.own
		c.usedAt = now // the peer is about to use it
	case !t.issued(from, own, epoch(now), validEpochs-1):
		own = t.token(from, epoch(now))
	}
	p := &t.packet
	*p = wire.Packet{Opcode: wire.SRDHelloReply, PKey: wire.DefaultPKey, MigReq: true, PSN: to.PSN}
	p.SRDETH = wire.SRDETH{Source: own, Target: to.SRDETH.Source, Floor: to.SRDETH.Floor, MTU: t.mtuCode}
	t.cfg.Reply(from, p)
}

// qp returns the queue pair with a number, or nil.
func (t *Transport) qp(num uint32) *QP {
	if t.lastQP == nil || t.lastQP.num != num {
		q := t.qps[num]
		if q == nil {
			return nil
		}
		t.lastQP = q
	}
	return t.lastQP
}

// Ready reports whether Transmit has something to do.
func (t *Transport) Ready() bool { return t.ready.Len() > 0 }

// Transmit sends what is due, at most budget packets, and returns what is left of the
// budget.
func (t *Transport) Transmit(now time.Duration, budget int) int {
	for budget > 0 && t.ready.Len() > 0 {
		c := t.ready.Pop().Value
		turn := min(budget, turnPackets)
		left, more := c.send(now, turn)
		budget -= turn - left
		if more {
			t.activate(c)
		} else {
			t.schedule(c)
		}
	}
	return budget
}

// turnPackets is how many packets one peer is sent before the next peer's turn.
const turnPackets = 64

func (t *Transport) activate(c *Context) {
	if !c.readyNode.Queued() {
		t.ready.Push(&c.readyNode)
	}
}

// AH is the SRD part of an address handle: the address of a peer, and its context.
type AH struct {
	address     Address
	known       *ref.Ref[Context] // nil: not looked up yet
	outstanding int               // requests with this handle
}

// NewAH returns the AH for an address.
func NewAH(a Address) AH { return AH{address: a} }

// CloseAH fails the outstanding requests of an address handle.
func (t *Transport) CloseAH(ah *AH) {
	if ah.outstanding == 0 {
		return
	}
	for _, num := range slices.Sorted(maps.Keys(t.qps)) { // the order is seen at completion queues that they share
		q := t.qps[num]
		for _, m := range q.messages {
			if m.busy && m.ah == ah {
				m.fail(codeInvalidAH)
			}
		}
	}
}
