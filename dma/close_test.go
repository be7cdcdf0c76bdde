package dma_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/dma"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/soft"
)

// A program that returns early closes everything, in the order of its deferred calls
// or the engine first: also with copies at the device, and with tasks that nobody has
// freed.
func TestCloseAfterAnEarlyReturn(t *testing.T) {
	for _, engineFirst := range []bool{false, true} {
		for _, tasks := range []int{0, 4} {
			t.Run(fmt.Sprintf("%d tasks, engine first %v", tasks, engineFirst), func(t *testing.T) {
				dev := must(soft.Open(soft.Config{}))
				memory := must(mmap.Alloc(dev, 1<<20, mmap.LocalReadWrite))
				bufs := must(bufinv.New(2 * 4))
				engine := pe.New(pe.Config{})
				c := must(dma.New(dev, dma.Config{Engine: engine}))
				require.Same(t, engine, c.Engine())
				require.Same(t, engine, c.Config().Engine)
				copies := must(c.CopyPool(4, func(*dma.CopyTask) {}, func(*dma.CopyTask, error) {}))
				require.NoError(t, c.Start())
				var made []*dma.CopyTask
				for i := range tasks {
					task := must(copies.Alloc(bufs.Source(memory, 0, 1<<16), bufs.Target(memory, (i+1)<<16, 1<<16)))
					if i%2 == 0 {
						require.NoError(t, task.Submit())
					}
					made = append(made, task)
				}

				closers := []func() error{c.Close, engine.Close, bufs.Close, memory.Close, dev.Close}
				if engineFirst {
					closers[0], closers[1] = closers[1], closers[0]
				}
				for i, close := range closers {
					require.NoError(t, close(), "%d", i)
				}
				for _, task := range made {
					require.ErrorIs(t, task.Free(), pe.ErrFreed)
				}
			})
		}
	}
}

func TestConfigEngine(t *testing.T) {
	dev := must(soft.Open(soft.Config{}))
	engine := pe.New(pe.Config{})
	require.NoError(t, engine.Close())
	_, err := dma.New(dev, dma.Config{Engine: engine})
	require.ErrorIs(t, err, pe.ErrClosed)
	require.NoError(t, dev.Close())
}
