package roce

import (
	"bytes"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/faults"
	"github.com/verbena-rdma/verbena/verbs"
)

// loopbackPaths are the two ways from a queue pair to itself. Where packets are
// captured, they take the socket.
var loopbackPaths = []struct {
	name string
	cfg  func() Config
	self bool
}{
	{"in memory", func() Config { return Config{} }, true},
	{"by the socket", func() Config { return Config{Capture: io.Discard} }, false},
}

// isLoopback reports whether the side's queue pair sends to itself in memory.
func (s *side) isLoopback() bool {
	_, ok := s.qp.(*queuePair).path.(*loopback)
	return ok
}

func openLoopback(t testing.TB, cfg Config, memory int) *side {
	t.Helper()
	s := openSide(t, cfg, memory)
	s.connect(s)
	return s
}

func (s *side) recv(id uint64, sgl ...verbs.SGE) {
	s.t.Helper()
	n, err := s.qp.PostRecv([]verbs.RecvWR{{ID: id, SGL: sgl}})
	require.NoError(s.t, err)
	require.Equal(s.t, 1, n)
}

// byID sorts completions out: sends have IDs below 100.
func byID(wcs []verbs.WC) map[uint64]verbs.WC {
	m := make(map[uint64]verbs.WC)
	for _, wc := range wcs {
		wc.QPN = 0
		m[wc.ID] = wc
	}
	return m
}

// TestLoopbackOperations runs every operation on a queue pair that is its own peer.
func TestLoopbackOperations(t *testing.T) {
	for _, path := range loopbackPaths {
		t.Run(path.name, func(t *testing.T) {
			const half = 6 << 20
			x := openLoopback(t, path.cfg(), 2*half)
			assert.Equal(t, path.self, x.isLoopback())
			mem := x.mem
			sizes := []int{0, 1, 255, 4096, 100_001, 1 << 20, 1<<20 + 1, 5_000_003}
			for _, n := range sizes {
				fill(mem[:n], uint64(n))
				clear(mem[half:])
				x.post(verbs.SendWR{ID: 1, Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, n/3), x.sge(n/3, n-n/3)}, RemoteAddr: x.mr.Addr() + half, RKey: x.mr.RKey()})
				assert.Equal(t, verbs.WC{ID: 1, Opcode: verbs.WCWrite, Bytes: uint32(n), QPN: x.qp.Num()}, x.wait(1)[0])
				assert.True(t, bytes.Equal(mem[:n], mem[half:half+n]), "a write of %d bytes", n)

				clear(mem[half:])
				x.post(verbs.SendWR{ID: 2, Op: verbs.OpRead, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(half, n/5), x.sge(half+n/5, n-n/5)}, RemoteAddr: x.mr.Addr(), RKey: x.mr.RKey()})
				assert.Equal(t, verbs.WC{ID: 2, Opcode: verbs.WCRead, Bytes: uint32(n), QPN: x.qp.Num()}, x.wait(1)[0])
				assert.True(t, bytes.Equal(mem[:n], mem[half:half+n]), "a read of %d bytes", n)

				clear(mem[half:])
				x.recv(100, x.sge(half, n/4), x.sge(half+n/4, n-n/4+10))
				x.post(verbs.SendWR{ID: 3, Op: verbs.OpSendImm, Imm: 7, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, n/2), x.sge(n/2, n-n/2)}})
				got := byID(x.wait(2))
				assert.Equal(t, verbs.WC{ID: 100, Opcode: verbs.WCRecv, Bytes: uint32(n), HasImm: true, Imm: 7}, got[100])
				assert.Equal(t, verbs.StatusSuccess, got[3].Status)
				assert.True(t, bytes.Equal(mem[:n], mem[half:half+n]), "a send of %d bytes", n)
			}
			x.recv(101)
			x.post(verbs.SendWR{ID: 4, Op: verbs.OpWriteImm, Imm: 9, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 64)}, RemoteAddr: x.mr.Addr() + half, RKey: x.mr.RKey()})
			assert.Equal(t, verbs.WC{ID: 101, Opcode: verbs.WCRecvWriteImm, Bytes: 64, HasImm: true, Imm: 9}, byID(x.wait(2))[101])

			word := (*uint64)(unsafe.Pointer(&mem[half]))
			atomic.StoreUint64(word, 40)
			x.post(
				verbs.SendWR{ID: 5, Op: verbs.OpFetchAdd, CompareAdd: 2, SGL: []verbs.SGE{x.sge(0, 8)}, RemoteAddr: x.mr.Addr() + half, RKey: x.mr.RKey()},
				verbs.SendWR{ID: 6, Op: verbs.OpCompareSwap, CompareAdd: 42, Swap: 7, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(8, 8)}, RemoteAddr: x.mr.Addr() + half, RKey: x.mr.RKey()},
			)
			x.wait(1)
			assert.Equal(t, []uint64{40, 42, 7}, []uint64{*(*uint64)(unsafe.Pointer(&mem[0])), *(*uint64)(unsafe.Pointer(&mem[8])), atomic.LoadUint64(word)})
			x.post(verbs.SendWR{ID: 7, Op: verbs.OpAtomicWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(8, 8)}, RemoteAddr: x.mr.Addr() + half, RKey: x.mr.RKey()})
			assert.Equal(t, verbs.WC{ID: 7, Opcode: verbs.WCAtomicWrite, Bytes: 8}, byID(x.wait(1))[7])
			assert.EqualValues(t, 42, atomic.LoadUint64(word))
			assert.Equal(t, path.self, counter(t, x.dev, "sent_pkts") == 0, "packets leave only by the socket")
			assert.Equal(t, path.self, counter(t, x.dev, "rcvd_pkts") == 0)
			assert.EqualValues(t, len(sizes), counter(t, x.dev, "rdma_sends"))
			if path.self {
				assert.Zero(t, counter(t, x.dev, "completer_retry_err"))
			}
		})
	}
}

// TestLoopbackFailures compares what becomes of bad requests in memory with what
// becomes of them on the socket.
func TestLoopbackFailures(t *testing.T) {
	const size = 8192
	all := verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
	signaled := func(op verbs.Opcode, sgl ...verbs.SGE) verbs.SendWR {
		return verbs.SendWR{ID: 1, Op: op, Flags: verbs.FlagSignaled, SGL: sgl}
	}
	at := func(wr verbs.SendWR, addr uint64, key uint32) verbs.SendWR {
		wr.RemoteAddr, wr.RKey = addr, key
		return wr
	}
	for _, c := range []struct {
		name   string
		access verbs.Access // of the queue pair
		rnr    uint8
		run    func(s *side, readOnly verbs.MR)
		want   map[uint64]verbs.Status
	}{
		{"write with a bad key", all, 7, func(s *side, _ verbs.MR) {
			s.post(at(signaled(verbs.OpWrite, s.sge(0, 64)), s.mr.Addr(), s.mr.RKey()+1))
		}, map[uint64]verbs.Status{1: verbs.StatusFlushed}},
		{"read with a bad key", all, 7, func(s *side, _ verbs.MR) {
			s.post(at(signaled(verbs.OpRead, s.sge(0, 64)), s.mr.Addr(), s.mr.RKey()+1))
		}, map[uint64]verbs.Status{1: verbs.StatusFlushed}},
		{"write out of bounds", all, 7, func(s *side, _ verbs.MR) {
			s.post(at(signaled(verbs.OpWrite, s.sge(0, 64)), s.mr.Addr()+size-63, s.mr.RKey()))
		}, map[uint64]verbs.Status{1: verbs.StatusFlushed}},
		{"write to read-only memory", all, 7, func(s *side, mr verbs.MR) {
			s.post(at(signaled(verbs.OpWrite, s.sge(0, 64)), mr.Addr(), mr.RKey()))
		}, map[uint64]verbs.Status{1: verbs.StatusFlushed}},
		{"atomic on read-only memory", all, 7, func(s *side, mr verbs.MR) {
			s.post(at(signaled(verbs.OpFetchAdd, s.sge(0, 8)), mr.Addr(), mr.RKey()))
		}, map[uint64]verbs.Status{1: verbs.StatusFlushed}},
		{"atomic on an odd address", all, 7, func(s *side, _ verbs.MR) {
			s.post(at(signaled(verbs.OpFetchAdd, s.sge(0, 8)), s.mr.Addr()+4, s.mr.RKey()))
		}, map[uint64]verbs.Status{1: verbs.StatusFlushed}},
		{"atomic write to read-only memory", all, 7, func(s *side, mr verbs.MR) {
			s.post(at(signaled(verbs.OpAtomicWrite, s.sge(0, 8)), mr.Addr(), mr.RKey()))
		}, map[uint64]verbs.Status{1: verbs.StatusFlushed}},
		{"atomic write to an odd address", all, 7, func(s *side, _ verbs.MR) {
			s.post(at(signaled(verbs.OpAtomicWrite, s.sge(0, 8)), s.mr.Addr()+4, s.mr.RKey()))
		}, map[uint64]verbs.Status{1: verbs.StatusFlushed}},
		{"write that the queue pair does not allow", verbs.AccessRemoteRead, 7, func(s *side, _ verbs.MR) {
			s.post(at(signaled(verbs.OpWrite, s.sge(0, 64)), s.mr.Addr()+4096, s.mr.RKey()))
		}, map[uint64]verbs.Status{1: verbs.StatusFlushed}},
		{"receive too small", all, 7, func(s *side, _ verbs.MR) {
			s.recv(100, s.sge(4096, 63))
			s.recv(101, s.sge(4096, 64))
			s.post(signaled(verbs.OpSend, s.sge(0, 32), s.sge(64, 32)))
		}, map[uint64]verbs.Status{1: verbs.StatusFlushed, 100: verbs.StatusLocalLengthError, 101: verbs.StatusFlushed}},
		{"receive into read-only memory", all, 7, func(s *side, mr verbs.MR) {
			s.recv(100, verbs.SGE{Addr: mr.Addr(), Length: 64, LKey: mr.LKey()})
			s.post(signaled(verbs.OpSend, s.sge(0, 64)))
		}, map[uint64]verbs.Status{1: verbs.StatusFlushed, 100: verbs.StatusLocalProtectionError}},
		{"send of memory that is not registered", all, 7, func(s *side, _ verbs.MR) {
			s.recv(100, s.sge(4096, 64))
			s.post(
				verbs.SendWR{ID: 2, SGL: []verbs.SGE{s.sge(0, 64)}},
				signaled(verbs.OpSend, verbs.SGE{Addr: s.mr.Addr(), Length: 64, LKey: s.mr.LKey() + 1}),
				verbs.SendWR{ID: 3, SGL: []verbs.SGE{s.sge(0, 64)}})
		}, map[uint64]verbs.Status{1: verbs.StatusLocalProtectionError, 3: verbs.StatusFlushed, 100: verbs.StatusSuccess}},
		{"no receive, at once", all, 0, func(s *side, _ verbs.MR) {
			s.post(signaled(verbs.OpSend, s.sge(0, 64)))
		}, map[uint64]verbs.Status{1: verbs.StatusRNRRetryExceeded}},
		{"no receive, after some tries", all, 3, func(s *side, _ verbs.MR) {
			s.post(signaled(verbs.OpSend, s.sge(0, 64)), verbs.SendWR{ID: 2, SGL: []verbs.SGE{s.sge(0, 64)}})
		}, map[uint64]verbs.Status{1: verbs.StatusRNRRetryExceeded, 2: verbs.StatusFlushed}},
		{"flushed", all, 7, func(s *side, _ verbs.MR) {
			s.post(signaled(verbs.OpSend, s.sge(0, 64)), verbs.SendWR{ID: 2, SGL: []verbs.SGE{s.sge(0, 64)}})
			require.NoError(s.t, s.qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.QPAttrState))
			s.recv(100, s.sge(4096, 63))
		}, map[uint64]verbs.Status{1: verbs.StatusFlushed, 2: verbs.StatusFlushed, 100: verbs.StatusFlushed}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var events [2][]verbs.EventType
			for i, path := range loopbackPaths {
				s := openSide(t, path.cfg(), size)
				cancel := s.dev.SubscribeEvents(func(e verbs.Event) { events[i] = append(events[i], e.Type) })
				s.access, s.rnr = &c.access, &c.rnr
				s.connect(s)
				require.Equal(t, path.self, s.isLoopback())
				readOnly, err := s.dev.DefaultPD().RegMR(make([]byte, 64), verbs.AccessRemoteRead)
				require.NoError(t, err)
				c.run(s, readOnly)
				got := make(map[uint64]verbs.Status)
				for id, wc := range byID(s.wait(len(c.want))) {
					got[id] = wc.Status
				}
				assert.Equal(t, c.want, got, path.name)
				attr, err := s.qp.Query()
				require.NoError(t, err)
				assert.Equal(t, verbs.QPError, attr.State)
				cancel()
				require.NoError(t, readOnly.Close())
			}
			assert.Equal(t, events[1], events[0], "events")
		})
	}
}

// A send that meets no receive waits and is tried again, for ever if so set.
func TestLoopbackWaitsForReceive(t *testing.T) {
	x := openLoopback(t, Config{}, 8192)
	fill(x.mem[:64], 1)
	x.post(verbs.SendWR{ID: 1, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 64)}})
	for counter(t, x.dev, "rcvd_rnr_err") < 3 {
		n, err := x.cq.Poll(x.wcs)
		require.NoError(t, err)
		require.Zero(t, n)
	}
	x.recv(100, x.sge(4096, 64))
	for _, wc := range x.wait(2) {
		assert.Equal(t, verbs.StatusSuccess, wc.Status)
	}
	assert.Equal(t, x.mem[:64], x.mem[4096:4160])
	assert.Zero(t, counter(t, x.dev, "sent_pkts"))
}

func TestLoopbackSharedReceiveQueue(t *testing.T) {
	x := openLoopback(t, Config{}, 8192)
	srq, err := x.dev.DefaultPD().CreateSRQ(verbs.SRQInit{MaxWR: 4, MaxSGE: 2})
	require.NoError(t, err)
	qp, err := x.dev.DefaultPD().CreateQP(verbs.QPInit{SendCQ: x.cq, RecvCQ: x.cq, SRQ: srq, MaxSendWR: 8})
	require.NoError(t, err)
	old := x.qp
	x.qp = qp
	x.connect(x)
	fill(x.mem[:64], 1)
	_, err = srq.PostRecv([]verbs.RecvWR{{ID: 100, SGL: []verbs.SGE{x.sge(4096, 20), x.sge(5000, 44)}}, {ID: 101}})
	require.NoError(t, err)
	x.post(
		verbs.SendWR{ID: 1, SGL: []verbs.SGE{x.sge(0, 64)}},
		verbs.SendWR{ID: 2, Op: verbs.OpWriteImm, Imm: 5, SGL: []verbs.SGE{x.sge(0, 8)}, RemoteAddr: x.mr.Addr() + 6000, RKey: x.mr.RKey()},
		verbs.SendWR{ID: 3, Op: verbs.OpRead, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(7000, 8)}, RemoteAddr: x.mr.Addr() + 6000, RKey: x.mr.RKey()})
	var ids []uint64
	for _, wc := range x.wait(3) {
		assert.Equal(t, verbs.StatusSuccess, wc.Status)
		ids = append(ids, wc.ID)
	}
	assert.Equal(t, []uint64{100, 101, 3}, ids, "in order, and of the sends the one that asks for it")
	assert.Equal(t, x.mem[:64], append(append([]byte(nil), x.mem[4096:4116]...), x.mem[5000:5044]...))
	assert.Equal(t, x.mem[:8], x.mem[7000:7008])
	require.NoError(t, qp.Close())
	require.NoError(t, srq.Close())
	x.qp = old
}

// Ends that disagree about sequence numbers get nowhere, and end.
func TestLoopbackSequenceNumbers(t *testing.T) {
	for _, psn := range []uint32{0xfffff1, 0xffffef} {
		x := openSide(t, Config{}, 4096)
		x.sqPSN = &psn
		x.connect(x)
		x.post(verbs.SendWR{ID: 1, Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 8)}, RemoteAddr: x.mr.Addr() + 100, RKey: x.mr.RKey()})
		want := verbs.StatusRetryExceeded
		if psn < 0xfffff0 {
			want = verbs.StatusSuccess // taken for repeated, and acknowledged
		}
		assert.Equal(t, want, x.wait(1)[0].Status)
	}
}

// A long copy does not hold the device: one round copies about a megabyte.
func TestLoopbackBudget(t *testing.T) {
	const size = 32 << 20
	x := openLoopback(t, Config{}, 2*size)
	fill(x.mem[:size], 1)
	x.recv(100, x.sge(size, size))
	d, q := x.dev, x.qp.(*queuePair)
	copied := func() int {
		n := 0
		for n < size && bytes.Equal(x.mem[n:n+4096], x.mem[size+n:size+n+4096]) {
			n += 4096
		}
		return n
	}
	d.mu.Lock()
	_, err := q.transport.PostSend([]verbs.SendWR{{ID: 1, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, size)}}})
	d.main.activate(q)
	d.main.transmit(d.now())
	first := copied()
	d.mu.Unlock()
	require.NoError(t, err)
	assert.Greater(t, first, 0)
	assert.LessOrEqual(t, first, 2*roundBytes)
	for _, wc := range x.wait(2) {
		assert.Equal(t, verbs.StatusSuccess, wc.Status)
	}
	assert.Equal(t, size, copied())
}

// The device copies by itself while nobody polls.
func TestLoopbackUnattended(t *testing.T) {
	const size = 8 << 20
	x := openLoopback(t, Config{}, 2*size)
	woken := make(chan struct{}, 1)
	x.cq.OnCompletion(func() { woken <- struct{}{} })
	x.recv(100, x.sge(size, size))
	armed, err := x.cq.Arm(false)
	require.NoError(t, err)
	require.True(t, armed)
	x.post(verbs.SendWR{ID: 1, SGL: []verbs.SGE{x.sge(0, size)}})
	<-woken
	assert.Equal(t, uint32(size), x.wait(1)[0].Bytes)
}

// Memory that is closed under a copy, and a queue pair under its work, leave
// nothing behind that would touch it.
func TestLoopbackClosedUnderWay(t *testing.T) {
	const size = 16 << 20
	x := openLoopback(t, Config{}, 4096)
	src, dst := make([]byte, size), make([]byte, size)
	fill(src, 1)
	from, err := x.dev.DefaultPD().RegMR(src, 0)
	require.NoError(t, err)
	to, err := x.dev.DefaultPD().RegMR(dst, verbs.AccessLocalWrite)
	require.NoError(t, err)
	x.recv(100, verbs.SGE{Addr: to.Addr(), Length: size, LKey: to.LKey()})
	x.dev.mu.Lock() // so that no other goroutine continues it
	q := x.qp.(*queuePair)
	_, err = q.transport.PostSend([]verbs.SendWR{{ID: 1, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{{Addr: from.Addr(), Length: size, LKey: from.LKey()}}}})
	x.dev.main.activate(q)
	x.dev.main.transmit(x.dev.now())
	x.dev.mu.memory.Remove(to.(*memoryRegion).region.Load())
	x.dev.mu.Unlock()
	require.NoError(t, err)
	got := byID(x.wait(2))
	assert.Equal(t, verbs.StatusLocalProtectionError, got[100].Status)
	assert.Equal(t, verbs.StatusFlushed, got[1].Status)
	assert.False(t, bytes.Equal(src, dst))
	require.NoError(t, from.Close())
	require.NoError(t, to.Close())
}

// Where packets are to have faults, or the peer is another queue pair, they take
// the socket.
func TestLoopbackOnTheSocket(t *testing.T) {
	// With more loss, eight attempts in a row fail now and then.
	x := openLoopback(t, Config{Faults: faults.Faults{Loss: 0.1, Seed: 1}}, 1<<20)
	assert.False(t, x.isLoopback())
	x.recv(100, x.sge(512<<10, 200<<10))
	x.post(verbs.SendWR{ID: 1, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 200<<10)}})
	for _, wc := range x.wait(2) {
		assert.Equal(t, verbs.StatusSuccess, wc.Status)
	}
	assert.NotZero(t, counter(t, x.dev, "completer_retry_err"))

	a, b := openPair(t, Config{}, Config{}, 4096)
	assert.False(t, a.isLoopback() || b.isLoopback())

	// A second queue pair of the same device is not its own peer either.
	qp, err := a.dev.DefaultPD().CreateQP(verbs.QPInit{SendCQ: a.cq, RecvCQ: a.cq, MaxSendWR: 8, MaxRecvWR: 8})
	require.NoError(t, err)
	sibling := *a
	sibling.qp = qp
	require.NoError(t, a.qp.Modify(verbs.QPAttr{State: verbs.QPReset}, verbs.QPAttrState))
	sibling.connect(a)
	a.connect(&sibling)
	assert.False(t, a.isLoopback() || sibling.isLoopback())
	a.post(verbs.SendWR{ID: 1, Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{a.sge(0, 8)}, RemoteAddr: a.mr.Addr() + 100, RKey: a.mr.RKey()})
	assert.Equal(t, verbs.StatusSuccess, a.wait(1)[0].Status)
	require.NoError(t, qp.Close())
}

func TestLoopbackAllocatesNothing(t *testing.T) {
	x := openLoopback(t, Config{}, 8<<20)
	recv := []verbs.RecvWR{{ID: 100, SGL: []verbs.SGE{x.sge(4<<20, 4<<20)}}}
	send := []verbs.SendWR{{ID: 1, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 1<<20), x.sge(2<<20, 1<<20)}}}
	var failure error
	allocs := testing.AllocsPerRun(1000, func() {
		_, err := x.qp.PostRecv(recv)
		_, err2 := x.qp.PostSend(send)
		for got := 0; got < 2 && failure == nil; {
			n, err3 := x.cq.Poll(x.wcs)
			failure = errors.Join(err, err2, err3)
			got += n
		}
	})
	require.NoError(t, failure)
	assert.Zero(t, allocs)
}

// An endpoint counts the queue pairs that receive from its socket, even if loopback
// connections end.
func TestLoopbackReceivers(t *testing.T) {
	x := openLoopback(t, Config{DisableLocal: true}, 4096)
	q := x.qp.(*queuePair)
	e := q.path.(*loopback).endpoint
	expect := func(self bool, receivers int) {
		t.Helper()
		assert.Equal(t, self, x.isLoopback())
		assert.Equal(t, receivers, e.receivers)
	}
	reset := func() {
		t.Helper()
		require.NoError(t, x.qp.Modify(verbs.QPAttr{State: verbs.QPReset}, verbs.QPAttrState))
	}
	expect(true, 0)
	reset()
	expect(false, 0)
	qp, err := x.dev.DefaultPD().CreateQP(verbs.QPInit{SendCQ: x.cq, RecvCQ: x.cq, MaxSendWR: 8, MaxRecvWR: 8})
	require.NoError(t, err)
	sibling := *x
	sibling.qp = qp
	x.connect(&sibling)
	sibling.connect(x)
	expect(false, 2)
	reset()
	x.connect(x)
	expect(true, 1)
	require.NoError(t, x.qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.QPAttrState))
	expect(true, 1)
	reset()
	expect(false, 1)
	x.connect(x)
	require.NoError(t, qp.Close())
	expect(true, 0)
}
