package transport

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/fabric"
	"github.com/verbena-rdma/verbena/soft/internal/fabric/fabrictest"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// bottleneck is a link that many connections share, with a queue of limited length, in
// virtual time. Packets in the other direction are only delayed. Hosts take no time.
type bottleneck struct {
	fabrictest.Clock
	t           tb
	there, back *fabric.Link
	conns       []*conn
}

// headerLen is the bytes that a packet has besides its payload.
const headerLen = 90

// packets is the bytes of n packets of the largest size.
func packets(n int) int { return n * (1024 + headerLen) }

var gigabit = fabric.LinkConfig{Rate: 125_000_000, Queue: packets(100), Latency: 15 * time.Microsecond}

func newBottleneck(t tb, c fabric.LinkConfig) *bottleneck {
	random := rand.New(rand.NewPCG(1, 2))
	return &bottleneck{
		Clock: fabrictest.Clock{Now: time.Second}, t: t,
		there: fabric.NewLink(c, random), back: fabric.NewLink(fabric.LinkConfig{Latency: c.Latency}, random),
	}
}

// bottleneckEnd is one end of a connection. Its Send puts packets on their way.
type bottleneckEnd struct {
	*end
	b       *bottleneck
	peer    *bottleneckEnd
	conn    *conn
	link    *fabric.Link // by which it sends
	timerAt time.Duration
}

func (h *bottleneckEnd) Send(p *wire.Packet, pieces [][]byte, n int) bool {
	kept := *p
	kept.Payload = nil
	if len(pieces) == 1 {
		kept.Payload = pieces[0]
	} else {
		kept.Payload = bytes.Join(pieces, nil)
	}
	h.b.Carry(h.link, n+headerLen, true, func(a fabric.Arrival) {
		if a.Marked {
			h.peer.qp.Marked(&kept, h.b.Now)
		}
		h.peer.receive(&kept, h.b.Now)
		h.peer.settle()
	})
	return true
}

// pump sends what the queue pair may send, and schedules its next deadline.
func (h *bottleneckEnd) pump() {
	for h.qp.Transmit(h, h.b.Now, 64) {
	}
	if at := h.qp.Deadline(); at != 0 && (h.timerAt == 0 || at < h.timerAt) {
		h.timerAt = at
		h.b.At(at, func() { h.expire(at) })
	}
}

// expire is called by the timer for that time.
func (h *bottleneckEnd) expire(timer time.Duration) {
	if h.timerAt == timer {
		h.timerAt = 0
	}
	if at := h.qp.Deadline(); at != 0 && at <= h.b.Now {
		h.qp.Timeout(h.b.Now)
		if at := h.qp.Deadline(); at != 0 && at <= h.b.Now {
			require.Fail(h.t, "Timeout leaves a deadline that has passed")
		}
	}
	h.settle()
}

func (h *bottleneckEnd) settle() {
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
		client: &bottleneckEnd{b: b, end: newEnd(b.t, n, NewMemory(), o), link: b.there},
		server: &bottleneckEnd{b: b, end: newEnd(b.t, n+1, NewMemory(), o), link: b.back},
	}
	if op == verbs.OpRead {
		c.client.link, c.server.link = b.back, b.there
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
	c.b.Pass(time.Millisecond)
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

// shares lets so much time pass, and returns the bytes a second that each connection moves in
// it.
func (b *bottleneck) shares(d time.Duration) []float64 {
	list := make([]float64, len(b.conns))
	for i, c := range b.conns {
		list[i] = -float64(c.bytes)
	}
	b.Pass(d)
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
	l := b.there
	return fmt.Sprintf("goodput %.2f of the link, fairness %.3f, %d lost, %d marked, at most %d bytes in the queue",
		b.used(shares), fairness(shares), l.Overflowed+l.Lost, l.Marked, l.Deepest)
}

// used is the part of the link's rate that the connections have.
func (b *bottleneck) used(shares []float64) float64 {
	return sum(shares) / float64(b.there.Config.Rate)
}
