package transport

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// tally counts completions.
type tally struct{ good, bad int }

func (c *tally) Complete(wc verbs.WC, frees QueueEntries, _ bool) {
	frees.Free()
	if wc.Status == verbs.StatusSuccess {
		c.good++
	} else {
		c.bad++
	}
}

// peerOutput hands packets to the peer on the spot, without a datagram between.
type peerOutput struct {
	peer   *QP
	packet wire.Packet
	buffer [wire.MaxPayloadLen]byte
}

func (w *peerOutput) Send(p *wire.Packet, pieces [][]byte, n int) bool {
	w.packet = *p
	switch len(pieces) {
	case 0:
		w.packet.Payload = nil
	case 1:
		w.packet.Payload = pieces[0]
	default:
		at := 0
		for _, piece := range pieces {
			at += copy(w.buffer[at:], piece)
		}
		w.packet.Payload = w.buffer[:n]
	}
	w.peer.Receive(&w.packet, time.Second)
	return true
}

// loop is two queue pairs back to back.
type loop struct {
	t              tb
	client, server *QP
	there, back    peerOutput
	sends, recvs   tally
	wrs            []verbs.SendWR
	receives       []verbs.RecvWR
}

// newLoop is ready to run batches of equal requests, of n bytes each.
func newLoop(t tb, op verbs.Opcode, batch, n int, mtu verbs.MTU, adaptive bool) *loop {
	o := options{adaptive: adaptive, mtu: mtu, depth: batch, recvDepth: batch, window: 1 << 20, initReads: 16}.defaults()
	l := &loop{t: t}
	a, b := newEnd(t, clientQPN, NewMemory(), o), newEnd(t, serverQPN, NewMemory(), o)
	a.qp.sendCQ, b.qp.recvCQ = &l.sends, &l.recvs
	a.ready(o.attr(serverQPN, 0, 0))
	b.ready(o.attr(clientQPN, 0, 0))
	l.client, l.server = a.qp, b.qp
	l.there.peer, l.back.peer = b.qp, a.qp
	local := newArena(t, a.memory, localKey, localBase, n, everyAccess)
	remote := newArena(t, b.memory, remoteKey, remoteBase, n, everyAccess)
	for range batch {
		l.wrs = append(l.wrs, verbs.SendWR{
			Op: op, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{local.sge(0, n)}, RemoteAddr: remoteBase, RKey: remoteKey,
		})
		l.receives = append(l.receives, verbs.RecvWR{SGL: []verbs.SGE{remote.sge(0, n)}})
	}
	return l
}

// batch posts the first n requests and sees them through.
func (l *loop) batch(n int) {
	switch l.wrs[0].Op {
	case verbs.OpSend, verbs.OpSendImm, verbs.OpWriteImm:
		if _, err := l.server.PostRecv(l.receives[:n]); err != nil {
			require.NoError(l.t, err)
		}
	}
	if _, err := l.client.PostSend(l.wrs[:n]); err != nil {
		require.NoError(l.t, err)
	}
	for l.client.sq.Len() > 0 {
		l.client.Transmit(&l.there, time.Second, 64)
		l.server.Transmit(&l.back, time.Second, 64)
	}
}

func TestNothingIsAllocated(t *testing.T) {
	for op := range verbs.OpAtomicWrite + 1 {
		switch op {
		case verbs.OpSendInvalidate, verbs.OpLocalInvalidate, verbs.OpBindMW: // need a window
			continue
		}
		n := 5000
		if isWord(op) {
			n = 8
		}
		for _, adaptive := range []bool{false, true} {
			l := newLoop(t, op, 16, n, 1024, adaptive)
			for range 20 {
				l.batch(16)
			}
			require.Zero(t, testing.AllocsPerRun(100, func() { l.batch(16) }), "%v", op)
			require.Equal(t, 121*16, l.sends.good, "%v", op)
			require.Zero(t, l.sends.bad)
		}
	}
}

// ns/op is the time of one request, posted, sent, executed, acknowledged and
// completed.
func benchmark(b *testing.B, op verbs.Opcode, batch, n int, mtu verbs.MTU, adaptive bool) {
	l := newLoop(b, op, batch, n, mtu, adaptive)
	for range 4 {
		l.batch(batch)
	}
	b.ReportAllocs()
	b.SetBytes(int64(n))
	b.ResetTimer()
	for left := b.N; left > 0; left -= batch {
		l.batch(min(left, batch))
	}
	b.StopTimer()
	require.Equal(b, b.N+4*batch, l.sends.good)
}

func BenchmarkSmall(b *testing.B) {
	for op := verbs.OpSend; op <= verbs.OpFetchAdd; op++ {
		for _, batch := range []int{1, 32} {
			for _, adaptive := range []bool{false, true} {
				b.Run(fmt.Sprintf("%v/batch %d/adaptive %v", op, batch, adaptive), func(b *testing.B) { benchmark(b, op, batch, 8, 1024, adaptive) })
			}
		}
	}
}

// These measure the state machines and one copy, without sockets and ICRC.
func BenchmarkMiB(b *testing.B) {
	for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpSend, verbs.OpRead} {
		for _, mtu := range []verbs.MTU{1024, 4096} {
			b.Run(fmt.Sprintf("%v/MTU %d", op, mtu), func(b *testing.B) { benchmark(b, op, 1, 1<<20, mtu, true) })
		}
	}
}
