package srd

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// tally counts completions.
type tally struct{ good, bad int }

func (c *tally) Complete(wc verbs.WC, frees transport.QueueEntries, _ bool) {
	frees.Free()
	if wc.Status == verbs.StatusSuccess {
		c.good++
	} else {
		c.bad++
	}
}

func (c *tally) Room(int) bool { return true }

func (c *tally) CompleteFrom(wc verbs.WC, frees transport.QueueEntries, _ uint16, _ verbs.GID) {
	c.Complete(wc, frees, false)
}

// loop is two devices, one of which has the addresses of many peers. Packets go from one
// to the other on the spot, without a datagram between.
type loop struct {
	now            time.Duration
	client, server *Transport
	qp, target     *QP
	sends, recvs   tally
	handles        []verbs.AH
	wrs            []verbs.SendWR
	receives       []verbs.RecvWR
	next           int

	// Of the packet on the way. What answers it has no payload.
	packet wire.Packet
	buffer [wire.MaxPayloadLen]byte
}

// loopOutput hands packets to the other device.
type loopOutput struct {
	l    *loop
	to   **Transport
	from Address // as the receiver sees it
}

func (x *loopOutput) Send(p *wire.Packet, pieces [][]byte, n int) bool {
	l := x.l
	l.packet = *p
	at := 0
	for _, piece := range pieces {
		at += copy(l.buffer[at:], piece)
	}
	l.packet.Payload = l.buffer[:n]
	t := *x.to
	t.Receive(t.Find(&x.from, p.SRDETH.Target), x.from, sendPort, &l.packet, l.now)
	return true
}

var (
	loopClient = netip.MustParseAddrPort("[fd00::1]:4791")
	loopServer = netip.MustParseAddrPort("[fd00::2]:4791")
)

// loopPeer is an address of the server: its devices differ in their ports.
func loopPeer(i int) netip.AddrPort {
	return netip.AddrPortFrom(loopServer.Addr(), uint16(1+i))
}

func newLoop(t tb, op verbs.Opcode, peers, n int) *loop {
	l := &loop{now: time.Second}
	memory := [2]*transport.Memory{transport.NewMemory(), transport.NewMemory()}
	random := uint32(1)
	cfg := Config{
		MTU: 4096, Window: 1 << 20, Number: func(netip.AddrPort) uint16 { return 0 },
		Random: func() uint32 { random += 0x9e3779b9; return random },
	}
	client, server := cfg, cfg
	client.Memory, server.Memory = memory[0], memory[1]
	// The server has an own GID for each of its addresses, so that each makes a context.
	outlet := func(at **Transport, from Address) *loopOutput { return &loopOutput{l: l, to: at, from: from} }
	client.Output = func(a Address) transport.Output {
		return outlet(&l.server, Address{int(a.Peer.Port()), loopClient})
	}
	server.Output = func(a Address) transport.Output {
		return outlet(&l.client, Address{0, loopPeer(a.Local - 1)})
	}
	client.Reply = func(a Address, p *wire.Packet) { client.Output(a).Send(p, nil, 0) }
	server.Reply = func(a Address, p *wire.Packet) { server.Output(a).Send(p, nil, 0) }
	l.client, l.server = New(client), New(server)
	const key = 7
	mem := [2][]byte{make([]byte, n), make([]byte, n)}
	for i := range memory {
		require.True(t, memory[i].Add(&transport.Region{Key: key, Domain: 1, Access: everyAccess, Base: 1 << 32, Mem: mem[i]}))
	}
	check := func(ah verbs.AH, _ uint32) (*AH, error) { return ah.(*fakeAH).ah, nil }
	c := QPConfig{Num: 5, Domain: 1, Send: &l.sends, Recv: &l.recvs, SendDepth: MaxSendWR, RecvDepth: MaxRecvWR, CheckAH: check}
	l.qp, l.target = l.client.NewQP(c), l.server.NewQP(c)
	for _, q := range []*QP{l.qp, l.target} {
		require.NoError(t, q.Modify(verbs.QPAttr{State: verbs.QPInitialized, Port: 1, QKey: testKey}, verbs.SRDToInit, l.now))
		require.NoError(t, q.Modify(verbs.QPAttr{State: verbs.QPReadyToReceive}, verbs.SRDToRTR, l.now))
		require.NoError(t, q.Modify(verbs.QPAttr{State: verbs.QPReadyToSend, RNRRetry: 7}, verbs.SRDToRTS|verbs.QPAttrRNRRetry, l.now))
	}
	for i := range peers {
		ah := NewAH(Address{0, loopPeer(i)})
		l.handles = append(l.handles, &fakeAH{&ah})
	}
	sgl := []verbs.SGE{{Addr: 1 << 32, Length: uint32(n), LKey: key}}
	for range 64 {
		l.wrs = append(l.wrs, verbs.SendWR{
			Op: op, Flags: verbs.FlagSignaled, SGL: sgl, RemoteAddr: 1 << 32, RKey: key, RemoteQPN: 5, RemoteQKey: testKey,
		})
		l.receives = append(l.receives, verbs.RecvWR{SGL: sgl})
	}
	return l
}

// batch posts n requests, to one peer after the other, and sees them through.
func (l *loop) batch(t tb, n int) {
	for i := range n {
		l.wrs[i].AH = l.handles[l.next]
		l.next = (l.next + 1) % len(l.handles)
	}
	switch l.wrs[0].Op {
	case verbs.OpSend, verbs.OpSendImm, verbs.OpWriteImm:
		if _, err := l.target.PostRecv(l.receives[:n]); err != nil {
			require.NoError(t, err)
		}
	}
	if _, err := l.qp.PostSend(l.wrs[:n], l.now); err != nil {
		require.NoError(t, err)
	}
	for l.qp.taken > 0 {
		l.now += 10 * time.Microsecond
		l.client.Transmit(l.now, 256)
		l.server.Transmit(l.now, 256)
		if l.client.Deadline() <= l.now {
			l.client.Expire(l.now)
		}
		if l.server.Deadline() <= l.now {
			l.server.Expire(l.now)
		}
	}
}

func TestNothingIsAllocated(t *testing.T) {
	for op := verbs.OpSend; op <= verbs.OpRead; op++ {
		for _, peers := range []int{1, 16} {
			n := 20000
			if op == verbs.OpSend || op == verbs.OpSendImm {
				n = 4096
			}
			l := newLoop(t, op, peers, n)
			for range 100 {
				l.batch(t, 64)
			}
			require.Zero(t, testing.AllocsPerRun(100, func() { l.batch(t, 64) }), "%v to %d peers", op, peers)
			require.Equal(t, 201*64, l.sends.good)
			require.Zero(t, l.sends.bad)
		}
	}
}

// ns/op is the time of one request at both ends, from post to completion, in batches of 64
// that go to the peer devices in turn. B/peer is the memory of one peer, at both ends
// together.
func BenchmarkPeers(b *testing.B) {
	for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpWrite, verbs.OpRead} {
		for _, peers := range []int{1, 100, 1000, 5000} {
			b.Run(fmt.Sprintf("%v/%d peers", op, peers), func(b *testing.B) {
				var before, after runtime.MemStats
				l := newLoop(b, op, peers, 8)
				runtime.GC()
				runtime.ReadMemStats(&before)
				for range 2*peers/64 + 1 {
					l.batch(b, 64)
				}
				runtime.GC()
				runtime.ReadMemStats(&after)
				b.ReportAllocs()
				b.ResetTimer()
				for left := b.N; left > 0; left -= 64 {
					l.batch(b, min(left, 64))
				}
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(peers), "B/peer")
				runtime.KeepAlive(l)
			})
		}
	}
}

func BenchmarkMiB(b *testing.B) {
	for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead} {
		b.Run(op.String(), func(b *testing.B) {
			l := newLoop(b, op, 1, 1<<20)
			b.SetBytes(1 << 20)
			b.ReportAllocs()
			for range 4 {
				l.batch(b, 1)
			}
			b.ResetTimer()
			for range b.N {
				l.batch(b, 1)
			}
		})
	}
}
