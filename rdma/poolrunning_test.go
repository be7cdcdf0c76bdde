package rdma_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/test/faultydevice"
	"github.com/verbena-rdma/verbena/verbs"
)

// A pool that is made in Running has any operation for each task, and serves run after run.
func TestPoolMadeInRunning(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	require.Equal(t, 16, r.a.ctx.Config().SendQueueSize)
	var pool *rdma.Pool
	for range 2 {
		r.a.conns, r.b.conns = nil, nil
		r.connect(1)
		if pool == nil {
			require.Equal(t, pe.Running, r.a.ctx.State())
			pool = anyPool(r.a.ctx)
			require.Equal(t, 64, r.a.ctx.Config().SendQueueSize)
		}
		conn := r.a.conns[0]
		run := func(task *rdma.Task, err error) *rdma.Task {
			t.Helper()
			require.NoError(t, err)
			ended := false
			require.NoError(t, pe.SubmitOrFree(task, nil, func(_ *rdma.Task, err error) {
				ended = true
				assert.NoError(t, err)
			}))
			r.until("it has ended", func() bool { return ended })
			require.NoError(t, task.Free())
			return task
		}
		fill(r.a.mem.Bytes()[:64], 3)
		write := run(pool.Write(conn, bufinv.Source(r.a.mem, 0, 64), bufinv.Target(r.a.peer, 64, 64)))
		assert.Equal(t, rdma.OpWrite, write.Operation())
		run(pool.Read(conn, bufinv.Source(r.a.peer, 64, 64), bufinv.Target(r.a.mem, 128, 64)))
		same(t, r.a.mem.Bytes()[:64], r.a.mem.Bytes()[128:192])
		clear(r.b.mem.Bytes()[:8])
		assert.Zero(t, run(pool.FetchAdd(conn, bufinv.Target(r.a.peer, 0, 8), 5)).Original())
		assert.EqualValues(t, 5, run(pool.CompareSwap(conn, bufinv.Target(r.a.peer, 0, 8), 5, 6)).Original())

		var all []*rdma.Task
		for range pool.Cap() {
			all = append(all, must(pool.Write(conn, bufinv.Source(r.a.mem, 0, 8), bufinv.Target(r.a.peer, 0, 8))))
		}
		_, err := pool.Write(conn, bufinv.Source(r.a.mem, 0, 8), bufinv.Target(r.a.peer, 0, 8))
		require.ErrorIs(t, err, pe.ErrExhausted)
		n, err := rdma.SubmitAll(all, pe.OptimizeReports)
		require.NoError(t, err)
		require.Equal(t, pool.Cap(), n)
		r.until("all have ended", func() bool { return r.a.ctx.InFlight() == 0 })
		require.NoError(t, rdma.FreeAll(all))

		require.NoError(t, r.a.ctx.Stop())
		_, err = r.a.ctx.Pool(1, pe.TaskDone[*rdma.Task], pe.TaskFailed[*rdma.Task])
		require.ErrorIs(t, err, pe.ErrBadState)
		r.until("both are Idle", func() bool { return r.a.ctx.State() == pe.Idle && r.b.ctx.State() == pe.Idle })
		_, err = pool.Send(conn, nil)
		require.ErrorIs(t, err, pe.ErrBadState)
	}
}

// Tasks of a pool that is made in Running, more than the completion queue has room for, wait and
// complete in order.
func TestPoolLargerThanTheCompletionQueue(t *testing.T) {
	r := newRig(t, rdma.Config{MaxConnections: 2, SendQueueSize: 1000}, rdma.Config{MaxConnections: 2})
	r.connect(2)
	const n = 5000
	done := map[*rdma.Connection]int{}
	pool := must(r.a.ctx.Pool(n, func(task *rdma.Task) {
		assert.Equal(t, done[task.Connection()], task.UserData())
		done[task.Connection()]++
	}, func(_ *rdma.Task, err error) { assert.NoError(t, err) }))
	var all []*rdma.Task
	for i := range n {
		task := must(pool.Write(r.a.conns[i%2], bufinv.Source(r.a.mem, 0, 8), bufinv.Target(r.a.peer, 0, 8)))
		task.SetUserData(i / 2)
		all = append(all, task)
	}
	require.Equal(t, n, must(rdma.SubmitAll(all, 0)))
	r.until("all have ended", func() bool { return r.a.ctx.InFlight() == 0 })
	require.Equal(t, n/2, done[r.a.conns[0]])
	require.Equal(t, n/2, done[r.a.conns[1]])
	require.NoError(t, rdma.FreeAll(all))
}

// A pool whose memory cannot be made leaves nothing behind: not its tasks, and nothing that the
// next run makes again.
func TestPoolWithoutMemory(t *testing.T) {
	dev := openFaulty(t)
	r := newRigOn(t, dev, openSoft(t), rdma.Config{}, rdma.Config{})
	refused := 0
	limit := func() {
		dev.Set(func(h *faultydevice.Hooks) {
			h.RegMR = func([]byte) error {
				refused++
				return verbs.ErrLimit
			}
		})
	}
	var pool *rdma.Pool
	regions := 0 // without a pool
	for run := range 2 {
		r.a.conns, r.b.conns = nil, nil
		registered := 0
		dev.Set(func(h *faultydevice.Hooks) { h.Registered = func(verbs.MR) { registered++ } })
		r.connect(1)
		size := r.a.ctx.Config().SendQueueSize
		limit()
		for i := range 2 {
			_, err := r.a.ctx.Pool(100, pe.TaskDone[*rdma.Task], pe.TaskFailed[*rdma.Task])
			require.ErrorIs(t, err, verbs.ErrLimit)
			require.Equal(t, 2*run+i+1, refused)
			require.Equal(t, size, r.a.ctx.Config().SendQueueSize, "no task counts")
		}
		before := registered
		dev.Set(func(h *faultydevice.Hooks) { h.RegMR = nil })
		_, err := r.a.ctx.Pool(100, nil, nil) // fails after its memory was made, which is given back
		require.ErrorIs(t, err, rdma.ErrInvalid)
		require.Equal(t, size, r.a.ctx.Config().SendQueueSize)
		if run == 0 {
			regions = before
			require.Equal(t, before+1, registered)
			require.Equal(t, 16, size)
			pool = anyPool(r.a.ctx)
			require.Equal(t, pool.Cap(), r.a.ctx.Config().SendQueueSize)
		} else {
			require.Equal(t, pool.Cap(), size)
			require.Equal(t, regions+1, before, "that of the one pool")
		}
		ended := false
		task := must(pool.FetchAdd(r.a.conns[0], bufinv.Target(r.a.peer, 0, 8), 1))
		require.NoError(t, pe.SubmitOrFree(task, nil, func(_ *rdma.Task, err error) {
			ended = true
			assert.NoError(t, err)
		}))
		r.until("it has ended", func() bool { return ended })
		require.EqualValues(t, run, task.Original())
		require.NoError(t, task.Free())
		require.NoError(t, r.a.ctx.Stop())
		r.until("both are Idle", func() bool { return r.a.ctx.State() == pe.Idle && r.b.ctx.State() == pe.Idle })
	}
}

// From Alloc to Free, operations of a pool made in Running allocate nothing.
func TestPoolMadeInRunningAllocatesNothing(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	r.connect(1)
	r.settle()
	pool, conn := anyPool(r.a.ctx), r.a.conns[0]
	var failure error
	write := func() {
		var task *rdma.Task
		if task, failure = pool.Write(conn, bufinv.Source(r.a.mem, 0, 8), bufinv.Target(r.a.peer, 0, 8)); failure != nil {
			return
		}
		failure = task.Submit()
		for task.InFlight() && failure == nil {
			_, failure = r.engine.Progress()
		}
		if failure == nil {
			failure = task.Free()
		}
	}
	assert.Zero(t, testing.AllocsPerRun(2000, write))
	require.NoError(t, failure)
}
