package transport

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// bottleneck is a link that many connections share, behind a queue of limited length, in
// virtual time. Packets in the other direction are only delayed. Hosts take no time.
type bottleneck struct {
	t      tb
	link   link
	now    time.Duration
	order  uint64
	events bottleneckEvents
	spare  []*bottleneckEvent
	random *rand.Rand
	conns  []*conn

	queued  int           // packets, the one that is being sent included
	idleAt  time.Duration // when the link has sent what is queued
	dropped int
	marked  int
	deepest int // packets that were queued at a time
}

// link is what a bottleneck is like.
type link struct {
	rate      int           // bytes a second, headers included
	limit     int           // packets that it queues
	markFrom  int           // packets in the queue from which on others are marked; zero: none are
	markSome  float64       // probability that any other packet is marked
	loseSome  float64       // that it is lost
	delay     time.Duration // each way, without the queue
	jitter    time.Duration // more, drawn for every packet that goes back
	perPacket int           // bytes that a packet has besides its payload
}

var gigabit = link{rate: 125_000_000, limit: 100, delay: 15 * time.Microsecond, perPacket: 90}

// bottleneckEvent is a packet that arrives, or the time of a queue pair.
type bottleneckEvent struct {
	at     time.Duration
	order  uint64
	to     *bottleneckEnd
	packet wire.Packet
	marked bool
	leaves bool // the queue
	timer  bool
}

type bottleneckEvents []*bottleneckEvent

func (h bottleneckEvents) Len() int { return len(h) }
func (h bottleneckEvents) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].order < h[j].order
}
func (h bottleneckEvents) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *bottleneckEvents) Push(x any)   { *h = append(*h, x.(*bottleneckEvent)) }
func (h *bottleneckEvents) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}

func newBottleneck(t tb, l link) *bottleneck {
	return &bottleneck{t: t, link: l, now: time.Second, idleAt: time.Second, random: rand.New(rand.NewPCG(1, 2))}
}

// at schedules an event, which the caller fills in.
func (b *bottleneck) at(at time.Duration) *bottleneckEvent {
	h := new(bottleneckEvent)
	if n := len(b.spare); n > 0 {
		h, b.spare = b.spare[n-1], b.spare[:n-1]
	}
	b.order++
	h.at, h.order = at, b.order
	heap.Push(&b.events, h)
	return h
}

// bottleneckEnd is one end of a connection. Its Send puts packets on their way.
type bottleneckEnd struct {
	*end
	b           *bottleneck
	peer        *bottleneckEnd
	conn        *conn
	throughLink bool // what it sends goes by the link
	timerAt     time.Duration
}

func (h *bottleneckEnd) Send(p *wire.Packet, pieces [][]byte, n int) bool {
	b := h.b
	at, marked := b.now+b.link.delay, false
	switch {
	case !h.throughLink:
		if b.link.jitter > 0 {
			at += time.Duration(b.random.Int64N(int64(b.link.jitter)))
		}
	case b.queued >= b.link.limit || b.link.loseSome > 0 && b.random.Float64() < b.link.loseSome:
		b.dropped++
		return true
	default:
		marked = b.link.markFrom > 0 && b.queued >= b.link.markFrom || b.link.markSome > 0 && b.random.Float64() < b.link.markSome
		if marked {
			b.marked++
		}
		b.queued++
		b.deepest = max(b.deepest, b.queued)
		b.idleAt = max(b.idleAt, b.now) + time.Duration(n+b.link.perPacket)*time.Second/time.Duration(b.link.rate)
		b.at(b.idleAt).leaves = true
		at = b.idleAt + b.link.delay
	}
	arrival := b.at(at)
	arrival.to, arrival.marked, arrival.packet = h.peer, marked, *p
	arrival.packet.Payload = nil
	if len(pieces) == 1 {
		arrival.packet.Payload = pieces[0]
	} else {
		for _, piece := range pieces {
			arrival.packet.Payload = append(arrival.packet.Payload, piece...)
		}
	}
	return true
}

// pump sends what the queue pair may send, and schedules its next deadline.
func (h *bottleneckEnd) pump() {
	for h.qp.Transmit(h, h.b.now, 64) {
	}
	if at := h.qp.Deadline(); at != 0 && (h.timerAt == 0 || at < h.timerAt) {
		h.timerAt = at
		e := h.b.at(at)
		e.to, e.timer = h, true
	}
}

// step runs the next event.
func (b *bottleneck) step() {
	e := heap.Pop(&b.events).(*bottleneckEvent)
	b.now = max(b.now, e.at)
	if e.leaves {
		b.queued--
	} else {
		e.deliver(b)
	}
	e.to, e.marked, e.leaves, e.timer = nil, false, false, false
	b.spare = append(b.spare, e)
}

// deliver is what a host notices of a step.
func (e *bottleneckEvent) deliver(b *bottleneck) {
	h := e.to
	if !e.timer {
		if e.marked {
			h.qp.Marked(&e.packet, b.now)
		}
		h.receive(&e.packet, b.now)
	} else {
		if h.timerAt == e.at {
			h.timerAt = 0
		}
		if at := h.qp.Deadline(); at != 0 && at <= b.now {
			h.qp.Timeout(b.now)
			if at := h.qp.Deadline(); at != 0 && at <= b.now {
				require.Fail(b.t, "Timeout leaves a deadline that has passed")
			}
		}
	}
	h.pump()
	if c := h.conn; len(c.client.send.list) > 0 {
		c.collect()
	}
}

// conn is a connection whose client keeps requests under way.
type conn struct {
	b              *bottleneck
	client, server *bottleneckEnd
	local, remote  *arena
	op             verbs.Opcode
	size           int
	stopped        bool
	bytes          int // completed
}

const requestsUnderWay = 4

// connect makes a connection, on which nothing is under way yet.
func (b *bottleneck) connect(op verbs.Opcode, size int, mtu verbs.MTU, controlled bool) *conn {
	o := options{mtu: mtu, adaptive: true, controlled: controlled, arena: size, initReads: 16, recvDepth: 2 * requestsUnderWay}.defaults()
	n := uint32(2*len(b.conns) + 2)
	c := &conn{
		b: b, op: op, size: size,
		client: &bottleneckEnd{b: b, end: newEnd(b.t, n, NewMemory(), o), throughLink: op != verbs.OpRead},
		server: &bottleneckEnd{b: b, end: newEnd(b.t, n+1, NewMemory(), o), throughLink: op == verbs.OpRead},
	}
	c.client.peer, c.server.peer = c.server, c.client
	c.local = newArena(b.t, c.client.memory, localKey, localBase, size, everyAccess)
	c.remote = newArena(b.t, c.server.memory, remoteKey, remoteBase, size, everyAccess)
	for _, h := range []*bottleneckEnd{c.client, c.server} {
		h.conn = c
		h.ready(o.attr(h.peer.qp.Num(), 0, 0))
	}
	b.conns = append(b.conns, c)
	return c
}

func (c *conn) post() {
	if c.op == verbs.OpSend {
		c.server.postRecv(verbs.RecvWR{SGL: []verbs.SGE{c.remote.sge(0, c.size)}})
	}
	c.client.post(verbs.SendWR{
		Op: c.op, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{c.local.sge(0, c.size)},
		RemoteAddr: c.remote.Base, RKey: c.remote.Key,
	})
}

// warmUp makes a small write, as package rdma does when it connects.
func (c *conn) warmUp() {
	c.stopped = true
	c.client.post(verbs.SendWR{
		Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{c.local.sge(0, 8)},
		RemoteAddr: c.remote.Base, RKey: c.remote.Key,
	})
	c.client.pump()
	c.b.run(time.Millisecond)
	c.stopped, c.bytes = false, 0
}

// start makes the client keep requests in progress.
func (c *conn) start() {
	for range requestsUnderWay {
		c.post()
	}
	c.client.pump()
}

// collect counts what is complete and posts as much again.
func (c *conn) collect() {
	again := 0
	for _, wc := range c.client.send.take() {
		require.Equal(c.b.t, verbs.StatusSuccess, wc.Status, "%v", wc.Status)
		c.bytes += c.size
		if !c.stopped {
			c.post()
			again++
		}
	}
	c.server.recv.take()
	if again > 0 {
		c.client.pump()
	}
}

// run advances the time by d.
func (b *bottleneck) run(d time.Duration) {
	end := b.now + d
	for len(b.events) > 0 && b.events[0].at <= end {
		b.step()
	}
	b.now = end
}

// shares lets so much time pass, and returns the bytes a second that each connection moves in
// it.
func (b *bottleneck) shares(d time.Duration) []float64 {
	list := make([]float64, len(b.conns))
	for i, c := range b.conns {
		list[i] = -float64(c.bytes)
	}
	b.run(d)
	for i, c := range b.conns {
		list[i] = (list[i] + float64(c.bytes)) / d.Seconds()
	}
	return list
}

// fairness is Jain's index: 1 where all have the same, 1/n where one has all.
func fairness(shares []float64) float64 {
	total, squares := 0.0, 0.0
	for _, x := range shares {
		total += x
		squares += x * x
	}
	return total * total / (float64(len(shares)) * squares)
}

func sum(list []float64) (total float64) {
	for _, x := range list {
		total += x
	}
	return total
}

// describe says how a run went.
func (b *bottleneck) describe(shares []float64) string {
	return fmt.Sprintf("goodput %.2f of the link, fairness %.3f, %d lost, %d marked, at most %d in the queue",
		sum(shares)/float64(b.link.rate), fairness(shares), b.dropped, b.marked, b.deepest)
}
