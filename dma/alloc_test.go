package dma_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/dma"
	"github.com/verbena-rdma/verbena/pe"
)

// A copy allocates nothing from Submit to its callback, nor from Alloc to Free,
// and takes no socket.
func TestNothingIsAllocated(t *testing.T) {
	r := newFixture(t, 4<<20, dma.Config{})
	done := 0
	var failure error
	pool := must(r.ctx.CopyPool(16, func(*dma.CopyTask) { done++ }, func(_ *dma.CopyTask, err error) { failure = err }))
	r.start()
	long := must(pool.Alloc(r.source(1<<20, 30), r.target(1<<20, 20)))
	short := make([]*dma.CopyTask, 15)
	for i := range short {
		short[i] = must(pool.Alloc(r.bufs.Source(r.src, 100*i, 64), r.bufs.Target(r.dst, 100*i, 64)))
	}
	drive := func(n int) {
		for want := done + n; done < want && failure == nil; {
			if _, err := r.engine.Progress(); err != nil {
				failure = err
			}
		}
	}
	submit := func(task *dma.CopyTask, flags pe.SubmitFlags) {
		if err := task.Submit(flags); err != nil {
			failure = err
		}
	}
	for _, c := range []struct {
		name string
		run  func()
	}{
		{"long lists", func() {
			submit(long, 0)
			drive(1)
		}},
		{"batch", func() {
			for _, task := range short {
				submit(task, pe.Aggregate|pe.OptimizeReports)
			}
			drive(len(short))
		}},
		{"from Alloc to Free", func() {
			require.NoError(t, short[0].Free())
			task, err := pool.Alloc(r.bufs.Source(r.src, 0, 64), r.bufs.Target(r.dst, 0, 64))
			if err != nil {
				failure = err
				return
			}
			short[0] = task
			submit(task, 0)
			drive(1)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			allocs := testing.AllocsPerRun(2000, c.run)
			require.NoError(t, failure)
			assert.Zero(t, allocs)
		})
	}
	counters := must(r.dev.Counters())
	for _, c := range counters {
		if c.Name == "sent_pkts" || c.Name == "rcvd_pkts" {
			assert.Zero(t, c.Value, c.Name)
		}
	}
	for _, task := range append(short, long) {
		require.NoError(t, task.Free())
	}
}
