package transport

import (
	"bytes"
	"fmt"
	"net/netip"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/fabric"
	"github.com/verbena-rdma/verbena/soft/internal/fabric/fabrictest"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// faults is what links do to packets. newNetwork sets the latency.
type faults = fabric.LinkConfig

const (
	latency = 2 * time.Microsecond
	// A reordered packet is late by up to this much.
	maxReorderDelay = 40 * time.Microsecond
	// A queue pair sends this many packets in a burst, and the next one later.
	burst    = 8
	burstGap = 400 * time.Nanosecond
)

// network joins queue pairs by links with faults, in virtual time. What happens
// depends on the seed alone.
type network struct {
	*fabrictest.Network[*node]
	t      tb
	nodes  []*node
	packet wire.Packet   // used for one packet after the other
	gap    time.Duration // from one burst of a queue pair to its next
	// changes makes queue pairs change at any time between the path MTU and larger packets.
	changes bool
}

func newNetwork(t tb, seed uint64, f faults) *network {
	f.Latency, f.ReorderDelay = latency, maxReorderDelay
	return &network{Network: fabrictest.NewNetwork[*node](seed, time.Millisecond, f), t: t, gap: burstGap}
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
	w.Watch(n.deadline, n.expire)
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
	if size > int(n.qp.mtu) && n.net.changes {
		n.sendLarge(p, pieces, size)
		return true
	}
	headers := p.Opcode.HeaderLen()
	total := headers + size + int(p.Pad) + wire.ICRCLen
	b := n.net.Buffer(total)
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
	n.net.Send(n, n.peer, b, n.peer.arrive)
	return true
}

// sendLarge gives a packet to the link that is larger than the path MTU. None is corrupted.
func (n *node) sendLarge(p *wire.Packet, pieces [][]byte, size int) {
	kept, payload, to, w := *p, bytes.Join(pieces, nil), n.peer, n.net
	require.Len(n.t, payload, size)
	w.Carry(w.Link(n, to), size, false, func(fabric.Arrival) {
		packet, cut := kept, w.Random.IntN(size+1)
		to.qp.ReceivePieces(&packet, to.qp.PathMTU(), [][]byte{payload[:cut], payload[cut:]}, nil, w.Now)
		to.settle()
	})
}

// arrive is the receiving side of the link.
func (n *node) arrive(b []byte) {
	w := n.net
	if n.stopped > w.Now {
		w.At(n.stopped, func() { n.arrive(b) })
		return
	}
	p := &w.packet
	if !n.gone && n.in.CheckICRC(b, 0) && p.Parse(b) == nil && p.DestQP == n.qp.Num() {
		n.receive(p, w.Now)
	}
	w.Release(b) // nobody may look at it any more
	if !n.gone {
		n.settle()
		return
	}
	if sender := n.peer; n.refuses {
		w.After(w.Config.Latency, func() {
			sender.qp.PeerUnreachable(w.Now)
			sender.settle()
		})
	}
}

// pump sends a burst and sees to the next.
func (n *node) pump() {
	if n.pumping {
		return
	}
	if n.stopped > n.net.Now {
		n.pumping = true
		n.net.After(n.stopped-n.net.Now, func() {
			n.pumping = false
			n.pump()
		})
		return
	}
	if n.net.changes {
		n.qp.SetLargestPacket(uint32(n.net.Random.IntN(12)) * n.qp.mtu)
	}
	before, waiting := n.sent, n.qp.sq.Len()
	more := n.qp.Transmit(n, n.net.Now, burst)
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
	n.net.After(n.net.gap, func() {
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

// deadline is when expire is to be called; zero: never.
func (n *node) deadline() time.Duration {
	d := n.qp.Deadline()
	if d != 0 {
		d = max(d, n.stopped)
	}
	return d
}

func (n *node) expire() {
	n.qp.Timeout(n.net.Now)
	if d := n.qp.Deadline(); d != 0 && d <= n.net.Now {
		require.Fail(n.t, "Timeout leaves a deadline that has passed", "state %v", n.qp.State())
	}
	n.settle()
}

// run lets everything happen and fails if that takes longer than limit.
func (w *network) run(limit time.Duration) {
	w.t.Helper()
	if !w.Run(limit) {
		require.Fail(w.t, "stalled", "still busy after %v of virtual time", limit)
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
