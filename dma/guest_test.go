package dma_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/dma"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/verbs"
)

// openAdapter skips tests that TestRig of test/rig runs in its guest.
func openAdapter(t *testing.T) verbs.Device {
	t.Helper()
	if os.Getenv("VERBENA_GUEST") == "" {
		t.Skip("runs in the guest of TestRig of test/rig")
	}
	return must(device.Open("rxe0"))
}

// More than the 8 MiB of one of rxe's messages goes in segments. Short: each size in one
// shape.
func TestGuestCopy(t *testing.T) {
	r := newFixtureOn(t, openAdapter(t), 16<<20+4096, dma.Config{})
	var copies outcome
	pool := must(r.ctx.CopyPool(1, copies.ok, copies.bad))
	r.start()
	fill(r.src.Bytes(), 1)
	for i, n := range []int{1, 7, 4096, 4097, 100_001, 1 << 20, 8 << 20, 8<<20 + 1, 16 << 20} {
		for j, shape := range [][2]int{{1, 1}, {3, 17}, {17, 3}} {
			if testing.Short() && i%3 != j {
				continue
			}
			t.Run(fmt.Sprintf("%d bytes from %d to %d", n, shape[0], shape[1]), func(t *testing.T) {
				clear(r.dst.Bytes())
				task, err := pool.Alloc(r.source(n, shape[0]), r.target(n, shape[1]))
				require.NoError(t, err)
				require.NoError(t, task.Submit())
				r.until("it is copied", func() bool { return copies.count() == 1 })
				require.Empty(t, copies.errs)
				same(t, task.Source().AppendBytes(nil), task.Destination().AppendBytes(nil))
				copies.free(t)
			})
		}
	}
}

// Many copies in flight, stopped half-way: each comes back once, and the context
// can be started again.
func TestGuestStop(t *testing.T) {
	const tasks, size = 64, 64 << 10
	r := newFixtureOn(t, openAdapter(t), tasks*size, dma.Config{QueueSize: 16})
	var copies outcome
	pool := must(r.ctx.CopyPool(tasks, copies.ok, copies.bad))
	fill(r.src.Bytes(), 1)
	for round := range 4 {
		r.start()
		for i := range tasks {
			task, err := pool.Alloc(r.bufs.Source(r.src, i*size, size), bufinv.List(
				r.bufs.Target(r.dst, i*size, size/3), r.bufs.Target(r.dst, i*size+size/3, size)))
			if i == tasks-1 {
				require.ErrorIs(t, err, bufinv.ErrRange)
				continue
			}
			require.NoError(t, err)
			require.NoError(t, task.Submit(pe.SubmitFlags(i%4)))
		}
		r.until("some are copied", func() bool { return len(copies.done) >= round*20 })
		require.NoError(t, r.ctx.Stop())
		r.until("all have come back", func() bool { return copies.count() == tasks-1 })
		for _, err := range copies.errs {
			require.ErrorIs(t, err, dma.ErrFlushed)
		}
		for _, task := range copies.done {
			same(t, task.Source().Bytes(), task.Destination().AppendBytes(nil))
		}
		copies.free(t)
		r.until("the context is Idle", func() bool { return r.ctx.State() == pe.Idle })
		assert.NoError(t, r.ctx.Err())
	}
}
