package rdma_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// The shared pool is made when it is asked for, also in Running, serves run after run,
// has any operation for each task, and is bounded.
func TestSharedPool(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	require.Equal(t, 16, r.a.ctx.Config().SendQueueSize)
	for range 2 {
		r.a.conns, r.b.conns = nil, nil
		r.connect(1)
		pool := must(r.a.ctx.SharedPool())
		require.Same(t, pool, must(r.a.ctx.SharedPool()))
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
		for range rdma.SharedTasks {
			all = append(all, must(pool.Write(conn, bufinv.Source(r.a.mem, 0, 8), bufinv.Target(r.a.peer, 0, 8))))
		}
		_, err := pool.Write(conn, bufinv.Source(r.a.mem, 0, 8), bufinv.Target(r.a.peer, 0, 8))
		require.ErrorIs(t, err, pe.ErrExhausted)
		n, err := rdma.SubmitAll(all, pe.OptimizeReports)
		require.NoError(t, err)
		require.Equal(t, rdma.SharedTasks, n)
		r.until("all have ended", func() bool { return r.a.ctx.InFlight() == 0 })
		require.NoError(t, rdma.FreeAll(all))

		require.NoError(t, r.a.ctx.Stop())
		_, err = r.a.ctx.SharedPool()
		require.ErrorIs(t, err, pe.ErrBadState)
		r.until("both are Idle", func() bool { return r.a.ctx.State() == pe.Idle && r.b.ctx.State() == pe.Idle })
		_, err = pool.Send(conn, nil)
		require.ErrorIs(t, err, pe.ErrBadState)
	}
}

// From Alloc to Free, operations of the shared pool allocate nothing.
func TestSharedPoolAllocatesNothing(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	r.connect(1)
	r.settle()
	pool, conn := must(r.a.ctx.SharedPool()), r.a.conns[0]
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
	assert.Zero(t, testing.AllocsPerRun(100, write))
	require.NoError(t, failure)
}
