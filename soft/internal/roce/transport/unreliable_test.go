package transport

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// receives posts n receives of the given length; their IDs count from 100.
func (r *rig) receives(n, length int) {
	r.t.Helper()
	for i := range n {
		r.server.postRecv(verbs.RecvWR{ID: uint64(100 + i), SGL: []verbs.SGE{r.remote.sge(i*length, length)}})
	}
}

func (r *rig) requireReceived(want ...verbs.WC) {
	r.t.Helper()
	got := r.server.recv.take()
	require.Equal(r.t, want, append([]verbs.WC(nil), got...))
}

func TestUnreliableOperations(t *testing.T) {
	for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpSendImm, verbs.OpWrite, verbs.OpWriteImm} {
		for _, n := range []int{0, 1, 255, 256, 257, 512, 1001} {
			r := newRig(t, options{kind: verbs.UC, psn: 0xfffffe})
			r.receives(1, 2048)
			wr := r.wr(1, op, n)
			wr.Flags |= verbs.FlagSolicited
			r.client.post(wr)
			sent := r.client.transmit(r.now)
			require.Len(t, sent, max((n+255)/256, 1))
			r.requireSent(1, verbs.StatusSuccess) // without a word from the peer
			for i, p := range sent {
				last := i == len(sent)-1
				assert.Equal(t, wire.ServiceUC, p.Opcode.Service())
				assert.Equal(t, last && op != verbs.OpWrite, p.Solicited)
				assert.False(t, p.AckReq)
				assert.Equal(t, wire.PSNAdd(0xfffffe, i), p.PSN)
			}
			r.server.take(r.now, sent...)
			require.Empty(t, r.server.transmit(r.now), "a response")
			require.True(t, bytes.Equal(r.local.Mem[:n], r.remote.Mem[:n]), "%v of %d bytes", op, n)
			r.remote.requireGuards(t)
			want := verbs.WC{ID: 100, Opcode: verbs.WCRecv, Bytes: uint32(n), QPN: serverQPN}
			if op == verbs.OpWriteImm {
				want.Opcode = verbs.WCRecvWriteImm
			}
			if op == verbs.OpSendImm || op == verbs.OpWriteImm {
				want.HasImm, want.Imm = true, wr.Imm
			}
			if op == verbs.OpWrite {
				r.requireReceived()
			} else {
				assert.Equal(t, []bool{true}, r.server.recv.solicited)
				r.requireReceived(want)
			}
		}
	}
}

func TestUnreliableOpcodes(t *testing.T) {
	r := newRig(t, options{kind: verbs.UC})
	r.client.post(r.wr(1, verbs.OpSendImm, 600), r.wr(2, verbs.OpWriteImm, 600), r.wr(3, verbs.OpWrite, 300), r.wr(4, verbs.OpSend, 300),
		r.wr(5, verbs.OpWriteImm, 3), r.wr(6, verbs.OpSendImm, 3), r.wr(7, verbs.OpWrite, 3), r.wr(8, verbs.OpSend, 3))
	assert.Equal(t, []wire.Opcode{
		wire.UCSendFirst, wire.UCSendMiddle, wire.UCSendLastImm, wire.UCWriteFirst, wire.UCWriteMiddle, wire.UCWriteLastImm,
		wire.UCWriteFirst, wire.UCWriteLast, wire.UCSendFirst, wire.UCSendLast,
		wire.UCWriteOnlyImm, wire.UCSendOnlyImm, wire.UCWriteOnly, wire.UCSendOnly,
	}, opcodes(r.client.transmit(r.now)))
}

// Each case damages the first of two messages; the second must arrive, in the receive that the
// first would have used.
func TestUnreliableBrokenMessage(t *testing.T) {
	without := func(i int) func([]wire.Packet) []wire.Packet {
		return func(list []wire.Packet) []wire.Packet { return slices.Delete(list, i, i+1) }
	}
	change := func(i int, f func(*wire.Packet)) func([]wire.Packet) []wire.Packet {
		return func(list []wire.Packet) []wire.Packet { f(&list[i]); return list }
	}
	for name, befall := range map[string]func([]wire.Packet) []wire.Packet{
		"first lost":  without(0),
		"middle lost": without(1),
		"last lost":   without(3),
		"all lost":    func([]wire.Packet) []wire.Packet { return nil },
		"reordered": func(list []wire.Packet) []wire.Packet {
			list[1], list[2] = list[2], list[1]
			return list
		},
		"middle twice":  func(list []wire.Packet) []wire.Packet { return slices.Insert(list, 1, list[1]) },
		"short middle":  change(1, func(p *wire.Packet) { p.Payload = p.Payload[:255] }),
		"long middle":   change(1, func(p *wire.Packet) { p.Payload = make([]byte, 257) }),
		"empty last":    change(3, func(p *wire.Packet) { p.Payload = nil }),
		"wrong middle":  change(2, func(p *wire.Packet) { p.Opcode ^= wire.UCSendMiddle ^ wire.UCWriteMiddle }),
		"other service": change(2, func(p *wire.Packet) { p.Opcode = p.Opcode.On(wire.ServiceRC) }),
	} {
		for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpWriteImm} {
			t.Run(fmt.Sprintf("%s, %v", name, op), func(t *testing.T) {
				r := newRig(t, options{kind: verbs.UC, psn: 0xffffff})
				r.receives(2, 2048)
				r.client.post(r.wr(1, op, 1000), r.wr(2, op, 700))
				sent := r.client.transmit(r.now)
				require.Len(t, sent, 7)
				r.server.take(r.now, befall(slices.Clone(sent[:4]))...)
				r.requireReceived()
				r.server.take(r.now, sent[4:]...)
				list := r.server.recv.take()
				require.Len(t, list, 1)
				assert.Equal(t, verbs.StatusSuccess, list[0].Status)
				assert.Equal(t, uint64(100), list[0].ID)
				assert.Equal(t, uint32(700), list[0].Bytes)
				assert.True(t, bytes.Equal(r.local.Mem[:700], r.remote.Mem[:700]))
				assert.Equal(t, verbs.QPReadyToSend, r.server.qp.State())
				assert.Empty(t, r.server.events)
				assert.Equal(t, 1, r.server.rq.Len(), "receives left")
			})
		}
	}
}

// A duplicate first packet starts its message again, which does no harm.
func TestUnreliableDuplicates(t *testing.T) {
	r := newRig(t, options{kind: verbs.UC})
	r.receives(3, 2048)
	r.client.post(r.wr(1, verbs.OpSend, 600), r.wr(2, verbs.OpSend, 5))
	sent := r.client.transmit(r.now)
	r.server.take(r.now, sent[0], sent[0], sent[1], sent[2], sent[2], sent[3], sent[3])
	list := r.server.recv.take()
	require.Equal(t, []uint64{100, 101, 102}, ids(list))
	assert.Equal(t, []uint32{600, 5, 5}, []uint32{list[0].Bytes, list[1].Bytes, list[2].Bytes})
}

func TestUnreliableWithoutReceive(t *testing.T) {
	for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpWriteImm} {
		r := newRig(t, options{kind: verbs.UC})
		r.client.post(r.wr(1, op, 600), r.wr(2, op, 10))
		sent := r.client.transmit(r.now)
		r.server.take(r.now, sent[:3]...)
		r.requireReceived()
		require.Empty(t, r.server.transmit(r.now))
		r.receives(1, 2048)
		r.server.take(r.now, sent[3:]...)
		assert.Equal(t, []uint64{100}, ids(r.server.recv.take()))
	}
}

func TestUnreliableReceiveTooSmall(t *testing.T) {
	r := newRig(t, options{kind: verbs.UC})
	r.receives(1, 300)
	r.client.post(r.wr(1, verbs.OpSend, 301), r.wr(2, verbs.OpSend, 300))
	r.exchange()
	r.requireReceived(verbs.WC{ID: 100, Opcode: verbs.WCRecv, Bytes: 300, QPN: serverQPN})
	r.remote.requireGuards(t)
	assert.Equal(t, uint64(1), r.server.counters.BrokenMessages)
}

func TestUnreliableWriteRefused(t *testing.T) {
	other := func(r *rig) *arena {
		return newArena(t, r.server.memory, 0x3003, 0x9000_0000_0000, 4096, verbs.AccessLocalWrite)
	}
	for name, spoil := range map[string]func(*rig, *verbs.SendWR){
		"rkey":          func(_ *rig, wr *verbs.SendWR) { wr.RKey++ },
		"bounds":        func(r *rig, wr *verbs.SendWR) { wr.RemoteAddr += arenaLen - 599 },
		"below":         func(r *rig, wr *verbs.SendWR) { wr.RemoteAddr-- },
		"access":        func(r *rig, wr *verbs.SendWR) { a := other(r); wr.RKey, wr.RemoteAddr = a.Key, a.Base },
		"closed region": func(r *rig, _ *verbs.SendWR) { r.server.memory.Remove(r.remote.Region) },
		"no permission": func(r *rig, _ *verbs.SendWR) {
			require.NoError(t, r.server.qp.Modify(verbs.QPAttr{}, verbs.QPAttrAccess))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, options{kind: verbs.UC})
			wr := r.wr(1, verbs.OpWrite, 600)
			spoil(r, &wr)
			r.client.post(wr)
			r.exchange()
			r.requireSent(1, verbs.StatusSuccess)
			r.requireIntact()
			assert.Equal(t, verbs.QPReadyToSend, r.server.qp.State())
			assert.Empty(t, r.server.events)
		})
	}
}

// A write cannot exceed the length that it announced.
func TestUnreliableWriteLength(t *testing.T) {
	for name, length := range map[string]uint32{"too long": 599, "too short": 601, "none": 0, "huge": 0xffffffff} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, options{kind: verbs.UC})
			r.receives(1, 8)
			r.client.post(r.wr(1, verbs.OpWriteImm, 600))
			sent := r.client.transmit(r.now)
			sent[0].RETH.Length = length
			r.server.take(r.now, sent...)
			r.requireReceived()
			r.remote.requireGuards(t)
		})
	}
}

// An invalid scatter list of a receive is a local error, not the peer's.
func TestUnreliableBadReceive(t *testing.T) {
	for _, kind := range []verbs.QPType{verbs.UC, verbs.UD} {
		r := newRig(t, options{kind: kind})
		r.server.postRecv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{{Addr: 1, Length: 100, LKey: 1}}}, verbs.RecvWR{ID: 2})
		r.client.post(r.datagramOr(1, verbs.OpSend, 10))
		r.exchange()
		r.requireReceived(verbs.WC{ID: 1, Status: verbs.StatusLocalProtectionError, Opcode: verbs.WCRecv, QPN: serverQPN},
			verbs.WC{ID: 2, Status: verbs.StatusFlushed, Opcode: verbs.WCRecv, QPN: serverQPN})
		assert.Equal(t, verbs.QPError, r.server.qp.State())
		assert.Empty(t, r.server.events, "the completion tells it")
	}
}

// An error of a send request stops the send queue alone (IBTA 10.3.1.5).
func TestSendQueueError(t *testing.T) {
	for _, kind := range []verbs.QPType{verbs.UC, verbs.UD} {
		t.Run(kind.String(), func(t *testing.T) {
			r := newRig(t, options{kind: kind})
			r.receives(4, 512)
			bad := r.datagramOr(2, verbs.OpSend, 200)
			bad.SGL[0].LKey++
			r.client.post(r.datagramOr(1, verbs.OpSend, 200), bad, r.datagramOr(3, verbs.OpSend, 200))
			r.exchange()
			list := r.client.send.take()
			require.Equal(t, []uint64{1, 2, 3}, ids(list))
			assert.Equal(t, []verbs.Status{verbs.StatusSuccess, verbs.StatusLocalProtectionError, verbs.StatusFlushed},
				[]verbs.Status{list[0].Status, list[1].Status, list[2].Status})
			assert.Equal(t, verbs.QPSendQueueError, r.client.qp.State())

			// It still receives.
			r.client.postRecv(verbs.RecvWR{ID: 9, SGL: []verbs.SGE{r.local.sge(0, 512)}})
			back := r.datagramOr(1, verbs.OpSend, 200)
			back.AH, back.RemoteQPN = testAH{r.server}, clientQPN
			back.SGL = []verbs.SGE{r.remote.sge(0, 200)}
			r.server.post(back)
			r.client.take(r.now, r.server.transmit(r.now)...)
			assert.Equal(t, []uint64{9}, ids(r.client.recv.take()))

			r.client.post(r.datagramOr(4, verbs.OpSend, 1))
			list = r.client.send.take()
			require.Len(t, list, 1)
			assert.Equal(t, verbs.StatusFlushed, list[0].Status)

			r.client.modify(verbs.QPReadyToSend)
			r.client.post(r.datagramOr(5, verbs.OpSend, 200))
			r.exchange()
			r.requireSent(5, verbs.StatusSuccess)
			assert.Equal(t, []uint64{100, 101}, ids(r.server.recv.take()))
		})
	}
}

// A region is closed in the middle of a message.
func TestUnreliableSourceClosed(t *testing.T) {
	r := newRig(t, options{kind: verbs.UC})
	r.client.post(r.wr(1, verbs.OpSend, 600), r.wr(2, verbs.OpSend, 1))
	c := collector{t: t}
	require.True(t, r.client.qp.Transmit(&c, r.now, 1))
	r.client.memory.Remove(r.local.Region)
	require.False(t, r.client.qp.Transmit(&c, r.now, 16))
	require.Len(t, c.packets, 1)
	list := r.client.send.take()
	require.Equal(t, []uint64{1, 2}, ids(list))
	assert.Equal(t, verbs.StatusLocalProtectionError, list[0].Status)
	assert.Equal(t, verbs.StatusFlushed, list[1].Status)
}

func TestUnreliableSendQueueDrained(t *testing.T) {
	r := newRig(t, options{kind: verbs.UC})
	r.client.post(r.wr(1, verbs.OpSend, 600), r.wr(2, verbs.OpSend, 10))
	c := collector{t: t}
	require.True(t, r.client.qp.Transmit(&c, r.now, 1))
	r.client.modify(verbs.QPSendQueueDrained)
	assert.Equal(t, []uint32{1, 2}, psns(r.client.transmit(r.now)), "the message begun is sent to its end")
	assert.Equal(t, []uint64{1}, ids(r.client.send.take()))
	r.client.modify(verbs.QPReadyToSend)
	assert.Equal(t, []uint32{3}, psns(r.client.transmit(r.now)))
}

func TestUnreliableRefusesToPost(t *testing.T) {
	for kind, ops := range map[verbs.QPType][]verbs.Opcode{
		verbs.UC: {verbs.OpRead, verbs.OpCompareSwap, verbs.OpFetchAdd, verbs.OpAtomicWrite},
		verbs.UD: {verbs.OpWrite, verbs.OpWriteImm, verbs.OpRead, verbs.OpCompareSwap, verbs.OpFetchAdd, verbs.OpAtomicWrite},
	} {
		r := newRig(t, options{kind: kind})
		for _, op := range ops {
			n, err := r.client.qp.PostSend([]verbs.SendWR{r.datagramOr(1, op, 8)})
			assert.Zero(t, n)
			assert.ErrorIs(t, err, verbs.ErrInvalid)
			assert.ErrorContains(t, err, "transport service "+kind.String()+" has no such operation")
		}
	}
}

func TestServicesDoNotMix(t *testing.T) {
	for _, to := range []verbs.QPType{verbs.RC, verbs.UC, verbs.UD} {
		for _, from := range []verbs.QPType{verbs.RC, verbs.UC, verbs.UD} {
			r := newRig(t, options{kind: to})
			r.receives(1, 512)
			s := newRig(t, options{kind: from})
			s.client.post(s.datagramOr(1, verbs.OpSend, 10))
			r.server.take(r.now, s.client.transmit(s.now)...)
			assert.Len(t, r.server.recv.take(), map[bool]int{true: 1}[from == to], "%v to %v", from, to)
		}
	}
}

// A long message does not leave in one burst: the peer's buffers are finite.
func TestPace(t *testing.T) {
	const window = 16 << 10
	r := newRig(t, options{kind: verbs.UC, mtu: 1024, window: window})
	r.client.post(r.wr(1, verbs.OpSend, arenaLen))
	var total, rounds int
	start := r.now
	for {
		n := 0
		for _, p := range r.client.transmit(r.now) {
			n += len(p.Payload)
		}
		total += n
		require.LessOrEqual(t, n, window+1024)
		if total == arenaLen {
			break
		}
		rounds++
		at := r.client.qp.Deadline()
		require.Greater(t, at, r.now)
		require.Empty(t, r.client.transmit(at-1))
		r.now = at
		r.client.qp.Timeout(r.now)
		require.Zero(t, r.client.qp.Deadline())
	}
	assert.Greater(t, rounds, 3)
	rate := float64(arenaLen-window) / (r.now - start).Seconds()
	assert.InDelta(t, paceRate, rate, 0.4*paceRate)
	r.requireSent(1, verbs.StatusSuccess)
	r.client.modify(verbs.QPError)
	assert.Zero(t, r.client.qp.Deadline())
}

func TestPaceIsRefilled(t *testing.T) {
	r := newRig(t, options{kind: verbs.UC, mtu: 1024, window: 8 << 10})
	for range 100 {
		r.now += time.Hour
		r.client.post(r.wr(1, verbs.OpSend, 4096))
		require.Len(t, r.client.transmit(r.now), 4)
		require.LessOrEqual(t, r.client.qp.credit, 8<<10)
		r.client.send.clear()
	}
}
