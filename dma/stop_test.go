package dma_test

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/dma"
	"github.com/verbena-rdma/verbena/pe"
)

// TestStopAtAnyTime stops contexts after a random number of steps, with copies of
// all sizes submitted, and checks that each comes back once.
func TestStopAtAnyTime(t *testing.T) {
	const tasks, memory = 32, 8 << 20
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	r := newFixture(t, memory, dma.Config{QueueSize: 5, MaxSGE: 2})
	var back map[*dma.CopyTask]int
	flushed, whole := 0, 0
	fill(r.src.Bytes(), 7)
	pool := must(r.ctx.CopyPool(tasks, func(task *dma.CopyTask) {
		whole++
		back[task]++
		data := task.Source().AppendBytes(nil)
		same(t, data, task.Destination().AppendBytes(nil))
		require.NoError(t, task.Free())
	}, func(task *dma.CopyTask, err error) {
		flushed++
		back[task]++
		require.ErrorIs(t, err, dma.ErrFlushed)
		require.Zero(t, task.Destination().ListDataLen())
		require.NoError(t, task.Free())
	}))
	for range 100 {
		back = make(map[*dma.CopyTask]int)
		r.start()
		for i := range tasks {
			n, parts := 1+random.IntN(2000), 1+random.IntN(8)
			if random.IntN(8) == 0 {
				n = random.IntN(memory/tasks-200) + 1
			}
			base := i * (memory / tasks)
			task, err := pool.Alloc(
				list(n, parts, func(off, n int) *bufinv.Buf { return r.bufs.Source(r.src, base+off, n) }),
				list(n, 9-parts, func(off, n int) *bufinv.Buf { return r.bufs.Target(r.dst, base+off, n) }))
			require.NoError(t, err)
			back[task] = 0
			require.NoError(t, task.Submit(pe.SubmitFlags(random.IntN(4))))
		}
		for range random.IntN(12) {
			_, err := r.engine.Progress()
			require.NoError(t, err)
		}
		require.NoError(t, r.ctx.Stop())
		r.until("the context is Idle", func() bool { return r.ctx.State() == pe.Idle })
		require.Len(t, back, tasks)
		for _, n := range back {
			require.Equal(t, 1, n)
		}
		require.Zero(t, r.ctx.InFlight())
		require.NoError(t, r.ctx.Err())
		require.Equal(t, r.bufs.Total(), r.bufs.Available())
	}
	assert.NotZero(t, flushed)
	assert.NotZero(t, whole)
}

// TestStopInCallback stops from the first callback; Run sees to the rest.
func TestStopInCallback(t *testing.T) {
	r := newFixture(t, 4096, dma.Config{})
	done, flushed := 0, 0
	pool := must(r.ctx.CopyPool(200, func(task *dma.CopyTask) {
		done++
		assert.NoError(t, r.ctx.Stop())
		assert.NoError(t, task.Free())
	}, func(task *dma.CopyTask, err error) {
		flushed++
		assert.ErrorIs(t, err, dma.ErrFlushed)
		assert.ErrorIs(t, task.Submit(), pe.ErrBadState)
		assert.NoError(t, task.Free())
	}))
	r.start()
	for range 200 {
		task := must(pool.Alloc(r.source(16, 1), r.target(16, 1)))
		require.NoError(t, task.Submit())
	}
	require.NoError(t, r.engine.Run(context.Background()))
	assert.Equal(t, 200, done+flushed)
	assert.Equal(t, pe.Idle, r.ctx.State())
}

// TestSleep lets Run sleep between copies, aggregated and not.
func TestSleep(t *testing.T) {
	r := newFixture(t, 4<<20, dma.Config{})
	left, failure := 60, error(nil)
	pool := must(r.ctx.CopyPool(1, func(task *dma.CopyTask) {
		left--
		if left == 0 {
			_ = task.Free()
			_ = r.ctx.Stop()
			return
		}
		if err := task.Submit(pe.SubmitFlags(left % 4)); err != nil {
			failure = err
			_ = task.Free()
			_ = r.ctx.Stop()
		}
	}, func(task *dma.CopyTask, err error) {
		failure = err
		_ = task.Free()
		_ = r.ctx.Stop()
	}))
	r.start()
	task := must(pool.Alloc(r.source(3<<20, 3), r.target(3<<20, 2)))
	require.NoError(t, task.Submit())
	require.NoError(t, r.engine.Run(context.Background()))
	require.NoError(t, failure)
}
