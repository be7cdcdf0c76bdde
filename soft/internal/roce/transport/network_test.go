package transport

import (
	"bytes"
	"container/heap"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// faults are probabilities, each drawn on its own for every packet.
type faults struct{ loss, duplication, reordering, corruption float64 }

const (
	latency = 2 * time.Microsecond
	// A reordered packet is late by up to this much.
	maxReorderDelay = 40 * time.Microsecond
	// A queue pair sends this many packets in a burst, and the next one later.
	burst    = 8
	burstGap = 400 * time.Nanosecond
)

// path is what a network does to packets that it does not lose.
type path struct {
	latency time.Duration // one way
	gap     time.Duration // from one burst of a queue pair to its next
	// changes has queue pairs change at any time between the path MTU and larger packets.
	changes bool
}

// network joins queue pairs by links with faults, in virtual time. What happens
// depends on the seed alone.
type network struct {
	t      tb
	now    time.Duration
	order  uint64
	queue  eventQueue
	random *rand.Rand
	faults faults
	path   path
	nodes  []*node
	free   [][]byte
	spare  []*event
	packet wire.Packet // used for one packet after the other

	packets, lost, corrupted int
}

func newNetwork(t tb, seed uint64, f faults) *network {
	return &network{
		t: t, now: time.Millisecond, random: rand.New(rand.NewPCG(seed, 0)), faults: f,
		path: path{latency: latency, gap: burstGap},
	}
}

// event is a datagram that arrives, or a call.
type event struct {
	at       time.Duration
	order    uint64
	to       *node
	datagram []byte
	call     func()
}

type eventQueue []*event

func (q eventQueue) Len() int { return len(q) }
func (q eventQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].order < q[j].order
}
func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *eventQueue) Push(x any)   { *q = append(*q, x.(*event)) }
func (q *eventQueue) Pop() any {
	last := len(*q) - 1
	x := (*q)[last]
	*q = (*q)[:last]
	return x
}

func (w *network) schedule(at time.Duration, to *node, datagram []byte, call func()) {
	e := new(event)
	if n := len(w.spare); n > 0 {
		e, w.spare = w.spare[n-1], w.spare[:n-1]
	}
	w.order++
	*e = event{at: at, order: w.order, to: to, datagram: datagram, call: call}
	heap.Push(&w.queue, e)
}

// after calls f in virtual time.
func (w *network) after(d time.Duration, f func()) { w.schedule(w.now+d, nil, nil, f) }

func (w *network) chance(p float64) bool { return p > 0 && w.random.Float64() < p }

func (w *network) buffer(n int) []byte {
	if k := len(w.free); k > 0 {
		b := w.free[k-1]
		w.free = w.free[:k-1]
		return b[:n]
	}
	return make([]byte, n, wire.MaxDatagramLen)
}

func (w *network) release(b []byte) { w.free = append(w.free, b) }

// carry brings a datagram to a node, or does not.
func (w *network) carry(to *node, b []byte) {
	w.packets++
	if w.chance(w.faults.duplication) {
		copied := w.buffer(len(b))
		copy(copied, b)
		w.fly(to, copied)
	}
	if w.chance(w.faults.loss) {
		w.lost++
		w.release(b)
		return
	}
	w.fly(to, b)
}

func (w *network) fly(to *node, b []byte) {
	if w.chance(w.faults.corruption) {
		w.corrupted++
		for range 1 + w.random.IntN(3) {
			b[w.random.IntN(len(b))] ^= 1 << w.random.IntN(8)
		}
	}
	w.schedule(w.now+w.latencyOf(), to, b, nil)
}

// node is a queue pair on the network.
type node struct {
	*end
	net     *network
	peer    *node
	out, in wire.Flow
	pumping bool // another burst is scheduled
	sent    int
	// stopped is until when the process is stopped: packets wait for it, timers
	// are late.
	stopped time.Duration
	// gone drops what arrives, as a host does without the process.
	gone bool
	// refuses has the host of a process that is gone say so.
	refuses bool
	// wake, where set, is called after anything has happened to the node.
	wake func()
}

// attach puts a queue pair on the network.
func (w *network) attach(e *end) *node {
	n := &node{end: e, net: w}
	e.out = n
	w.nodes = append(w.nodes, n)
	return n
}

// join makes two nodes peers over IPv6, whose ICRC leaves no corruption unseen.
func (w *network) join(a, b *node) {
	address := func(n *node) netip.AddrPort {
		ip := netip.MustParseAddr(fmt.Sprintf("fd00::%x", n.qp.Num()))
		return netip.AddrPortFrom(ip, wire.UDPPort)
	}
	a.peer, b.peer = b, a
	there, back := wire.NewFlow(address(a), address(b)), wire.NewFlow(address(b), address(a))
	a.out, a.in, b.out, b.in = there, back, back, there
}

// Send encodes a packet and gives it to the link.
func (n *node) Send(p *wire.Packet, pieces [][]byte, size int) bool {
	n.sent++
	if size > int(n.qp.mtu) && n.net.path.changes {
		n.sendLarge(p, pieces, size)
		return true
	}
	headers := p.Opcode.HeaderLen()
	total := headers + size + int(p.Pad) + wire.ICRCLen
	b := n.net.buffer(total)
	if p.PutHeaders(b) != headers || p.Pad != uint8(-size&3) || size > int(n.qp.mtu) || p.DestQP != n.peer.qp.Num() {
		require.Failf(n.t, "bad packet", "%+v with %d bytes", p, size)
	}
	at := headers
	for _, piece := range pieces {
		at += copy(b[at:], piece)
	}
	if at != headers+size {
		require.Failf(n.t, "bad packet", "%v: pieces of %d bytes, %d announced", p.Opcode, at-headers, size)
	}
	clear(b[at : total-wire.ICRCLen])
	crc := n.out.ICRCStart(0, total, b[:headers])
	crc = wire.ICRCUpdate(crc, b[headers:total-wire.ICRCLen])
	wire.PutICRC(b[total-wire.ICRCLen:], wire.ICRCFinish(crc))
	n.net.carry(n.peer, b)
	return true
}

// sendLarge gives a packet to the link that is larger than the path MTU. None is corrupted.
func (n *node) sendLarge(p *wire.Packet, pieces [][]byte, size int) {
	kept, payload, to, w := *p, bytes.Join(pieces, nil), n.peer, n.net
	require.Len(n.t, payload, size)
	w.packets++
	copies := 1
	if w.chance(w.faults.duplication) {
		copies++
	}
	if w.chance(w.faults.loss) {
		w.lost++
		copies--
	}
	for range copies {
		at := w.latencyOf()
		w.after(at, func() {
			packet, cut := kept, w.random.IntN(size+1)
			to.qp.ReceivePieces(&packet, [][]byte{payload[:cut], payload[cut:]}, nil, w.now)
			to.settle()
		})
	}
}

// latencyOf is how long the next packet takes.
func (w *network) latencyOf() time.Duration {
	if w.chance(w.faults.reordering) {
		return w.path.latency + time.Duration(w.random.Int64N(int64(maxReorderDelay)))
	}
	return w.path.latency
}

var poison = bytes.Repeat([]byte{0xdb}, wire.MaxDatagramLen)

// arrive is the receiving side of the link.
func (n *node) arrive(b []byte) {
	p := &n.net.packet
	if n.in.CheckICRC(b, 0) && p.Parse(b) == nil && p.DestQP == n.qp.Num() {
		n.receive(p, n.net.now)
	}
	// Nobody may look at it any more.
	copy(b, poison)
	n.net.release(b)
}

// pump sends a burst and sees to the next.
func (n *node) pump() {
	if n.pumping {
		return
	}
	if n.stopped > n.net.now {
		n.pumping = true
		n.net.after(n.stopped-n.net.now, func() {
			n.pumping = false
			n.pump()
		})
		return
	}
	if n.net.path.changes {
		n.qp.SetLargestPacket(uint32(n.net.random.IntN(12)) * n.qp.mtu)
	}
	before, waiting := n.sent, n.qp.sq.Len()
	more := n.qp.Transmit(n, n.net.now, burst)
	executed := n.qp.sq.Len() < waiting // requests without packets
	if executed && n.wake != nil {
		defer n.settle()
	}
	if !more {
		return
	}
	if n.sent == before && !executed {
		require.Fail(n.t, "Transmit wants to be called again but has sent nothing")
	}
	n.pumping = true
	n.net.after(n.net.path.gap, func() {
		n.pumping = false
		n.pump()
	})
}

func (n *node) settle() {
	if n.wake != nil {
		n.wake()
	}
	n.pump()
}

// step makes the next thing happen; it reports false when there is none.
func (w *network) step() bool {
	var late *node
	var at time.Duration
	for _, n := range w.nodes {
		if d := n.qp.Deadline(); d != 0 && (late == nil || max(d, n.stopped) < at) {
			late, at = n, max(d, n.stopped)
		}
	}
	if len(w.queue) > 0 && (late == nil || w.queue[0].at <= at) {
		e := heap.Pop(&w.queue).(*event)
		w.now = max(w.now, e.at)
		switch {
		case e.call != nil:
			e.call()
		case e.to.stopped > w.now:
			w.schedule(e.to.stopped, e.to, e.datagram, nil)
		case e.to.gone:
			w.release(e.datagram)
			if sender := e.to.peer; e.to.refuses {
				w.after(w.path.latency, func() {
					sender.qp.PeerUnreachable(w.now)
					sender.settle()
				})
			}
		default:
			e.to.arrive(e.datagram)
			e.to.settle()
		}
		w.spare = append(w.spare, e)
		return true
	}
	if late == nil {
		return false
	}
	w.now = max(w.now, at)
	late.qp.Timeout(w.now)
	if d := late.qp.Deadline(); d != 0 && d <= w.now {
		require.Fail(w.t, "Timeout leaves a deadline that has passed", "state %v", late.qp.State())
	}
	late.settle()
	return true
}

// run lets everything happen and fails if that takes longer than limit.
func (w *network) run(limit time.Duration) {
	w.t.Helper()
	end := w.now + limit
	for w.step() {
		if w.now > end {
			require.Fail(w.t, "stalled", "still busy after %v of virtual time", limit)
		}
	}
}

// requireQuiet asserts that nothing is left to be done.
func (n *node) requireQuiet() {
	n.t.Helper()
	q := n.qp
	require.Equal(n.t, verbs.QPReadyToSend, q.State())
	require.Zero(n.t, q.sq.Len(), "requests outstanding")
	require.Zero(n.t, q.responses.Len(), "answers that wait")
	require.Zero(n.t, q.Deadline(), "deadline")
	require.Equal(n.t, noMessage, q.message)
	require.False(n.t, q.inReceive)
	require.Equal(n.t, q.nextPSN, q.unaPSN)
	require.Equal(n.t, q.nextPSN, n.peer.qp.expected, "the peer expects what is sent next")
	require.Empty(n.t, n.events)
}
