package roce

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// completions waits until so many completions wait in the side's queue. It polls none.
func (s *side) completions(n int) {
	s.t.Helper()
	c := asCompletionQueue(s.cq)
	require.Eventually(s.t, func() bool {
		defer c.lock().mu.Unlock()
		return c.entries.Len() == n
	}, 5*time.Minute, time.Millisecond)
}

// A place in the send or receive queue is taken until the completion has been polled, with every
// service, and by both ways between devices.
func TestEntriesAreFreedByPolling(t *testing.T) {
	for _, service := range []verbs.QPType{verbs.RC, verbs.UC, verbs.UD, verbs.SRD} {
		for _, cfg := range []Config{{DisableLocal: true}, {}} {
			testEntries(t, service, cfg)
		}
	}
}

func testEntries(t *testing.T, service verbs.QPType, cfg Config) {
	const depth = 4
	x, y := openSide(t, cfg, 4096), openSide(t, cfg, 4096)
	wr := verbs.SendWR{Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 8)}}
	for _, s := range []*side{x, y} {
		require.NoError(t, s.qp.Close())
		s.qp = must(s.dev.DefaultPD().CreateQP(verbs.QPInit{Type: service, SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: depth, MaxRecvWR: depth}))
		switch service {
		case verbs.UD:
			s.readyUD()
		case verbs.SRD:
			(&srdNode{side: s}).ready(7)
		}
	}
	switch service {
	case verbs.RC:
		x.connect(y)
		y.connect(x)
	case verbs.UC:
		x.connectUC(y)
		y.connectUC(x)
	default:
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = x.handle(x.dev.DefaultPD(), x.address(y)), y.qp.Num(), testKey
	}
	receive := verbs.RecvWR{SGL: []verbs.SGE{y.sge(0, 64)}}
	y.postRecv(slices.Repeat([]verbs.RecvWR{receive}, depth)...)
	first := wr
	if service != verbs.SRD { // which has no others
		first.Flags = 0
	}
	x.post(first, first, first, wr)
	y.completions(depth)
	if service == verbs.SRD {
		x.completions(depth)
	} else {
		x.completions(1)
	}

	n, err := x.qp.PostSend([]verbs.SendWR{wr})
	require.ErrorIs(t, err, verbs.ErrQueueFull, "%v", service)
	require.Zero(t, n)
	n, err = y.qp.PostRecv([]verbs.RecvWR{receive})
	require.ErrorIs(t, err, verbs.ErrQueueFull, "%v", service)
	require.Zero(t, n)

	// Each receive frees one place, and the signaled request all that come before it.
	y.wcs = y.wcs[:1]
	y.wait(1)
	n, err = y.qp.PostRecv([]verbs.RecvWR{receive, receive})
	require.ErrorIs(t, err, verbs.ErrQueueFull, "%v", service)
	require.Equal(t, 1, n, "%v", service)
	if service == verbs.SRD {
		x.wait(depth)
	} else {
		x.wait(1)
	}
	n, err = x.qp.PostSend(slices.Repeat([]verbs.SendWR{wr}, depth+1))
	require.ErrorIs(t, err, verbs.ErrQueueFull, "%v", service)
	require.Equal(t, depth, n, "%v", service)
}

// Completions that a queue has lost, since it overflowed, take no place of a shared receive queue.
func TestOverflowFreesSharedEntries(t *testing.T) {
	x, y := openSide(t, Config{}, 4096), openSide(t, Config{}, 4096)
	small := must(y.dev.CreateCQ(verbs.CQInit{Capacity: 2}))
	srq := must(y.dev.DefaultPD().CreateSRQ(verbs.SRQInit{MaxWR: 4}))
	qp := y.qp
	y.qp = must(y.dev.DefaultPD().CreateQP(verbs.QPInit{SendCQ: y.cq, RecvCQ: small, SRQ: srq, MaxSendWR: 1}))
	t.Cleanup(func() {
		require.NoError(t, y.qp.Close())
		require.NoError(t, srq.Close())
		require.NoError(t, small.Close())
		y.qp = qp
	})
	x.connect(y)
	y.connect(x)
	receive := verbs.RecvWR{SGL: []verbs.SGE{y.sge(0, 64)}}
	require.Equal(t, 4, must(srq.PostRecv(slices.Repeat([]verbs.RecvWR{receive}, 4))))
	wr := verbs.SendWR{Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 8)}}
	x.post(wr, wr, wr)
	require.Eventually(t, func() bool { return must(y.qp.Query()).State == verbs.QPError }, 5*time.Minute, time.Millisecond)
	_, err := small.Poll(y.wcs)
	require.ErrorIs(t, err, verbs.ErrOverrun)
	n, err := srq.PostRecv(slices.Repeat([]verbs.RecvWR{receive}, 5))
	require.ErrorIs(t, err, verbs.ErrQueueFull)
	require.Equal(t, 3, n, "one has not been used")
}

// ibv_modify_srq(3), and what rxe refuses; the capacities of receives that ibv_create_qp(3)
// ignores.
func TestSharedReceiveQueueLimits(t *testing.T) {
	x := openSide(t, Config{}, 8)
	srq := must(x.dev.DefaultPD().CreateSRQ(verbs.SRQInit{MaxWR: 4}))
	for limit, want := range map[int]error{-1: verbs.ErrInvalid, 0: nil, 4: nil, 5: verbs.ErrInvalid} {
		require.ErrorIs(t, srq.SetLimit(limit), want, "%d", limit)
	}
	for _, n := range []int{-1, 0, 1, 1 << 30} {
		qp, err := x.dev.DefaultPD().CreateQP(verbs.QPInit{SendCQ: x.cq, RecvCQ: x.cq, SRQ: srq, MaxRecvWR: n, MaxRecvSGE: n})
		require.NoError(t, err, "%d receives", n)
		require.NoError(t, qp.Close())
	}
	require.NoError(t, srq.Close())
}
