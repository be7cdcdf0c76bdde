package dma_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/dma"
	"github.com/verbena-rdma/verbena/pe"
)

// Every callback panics, in Running and when the context is stopped: all tasks come
// back all the same, those that were never posted included, and it becomes Idle.
func TestEveryCallbackPanics(t *testing.T) {
	r := newFixture(t, 4096, dma.Config{QueueSize: 1})
	out := &outcome{then: func(*dma.CopyTask) { panic("mine") }}
	pool := must(r.ctx.CopyPool(8, out.ok, out.bad))
	r.start()
	var tasks []*dma.CopyTask
	for i := range 8 {
		task := must(pool.Alloc(r.bufs.Source(r.src, 8*i, 8), r.bufs.Target(r.dst, 8*i, 8)))
		require.NoError(t, task.Submit())
		tasks = append(tasks, task)
	}
	caught := 0
	progress := func() {
		defer func() {
			if recover() != nil {
				caught++
			}
		}()
		_, err := r.engine.Progress()
		require.NoError(t, err)
	}
	for out.count() < 3 {
		progress()
	}
	require.NoError(t, r.ctx.Stop())
	for out.count() < len(tasks) {
		progress()
	}
	require.Equal(t, len(tasks), caught)
	out.then = nil
	out.free(t)
	r.until("it is Idle", func() bool { return r.ctx.State() == pe.Idle })
}
