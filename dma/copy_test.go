package dma_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/dma"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
)

// list makes a list of up to count buffers that hold n bytes, with gaps.
func list(n, count int, buf func(off, n int) *bufinv.Buf) *bufinv.Buf {
	var parts []*bufinv.Buf
	off := 3
	for i := range count {
		part := n / (count - i)
		if part == 0 {
			continue
		}
		parts = append(parts, buf(off, part))
		off += part + 5
		n -= part
	}
	return bufinv.List(parts...)
}

func (r *fixture) source(n, count int) *bufinv.Buf {
	return list(n, count, func(off, n int) *bufinv.Buf { return r.bufs.Source(r.src, off, n) })
}

func (r *fixture) target(n, count int) *bufinv.Buf {
	return list(n, count, func(off, n int) *bufinv.Buf { return r.bufs.Target(r.dst, off, n) })
}

func TestCopy(t *testing.T) {
	r := newFixture(t, 64<<20+4096, dma.Config{})
	var copies outcome
	pool := must(r.ctx.CopyPool(1, copies.ok, copies.bad))
	r.start()
	fill(r.src.Bytes(), 1)
	for _, n := range []int{1, 2, 7, 8, 63, 4095, 4096, 4097, 65536, 1 << 20, 1<<20 + 1, 16 << 20, 64 << 20} {
		for _, shape := range [][2]int{{1, 1}, {3, 1}, {1, 3}, {4, 9}, {17, 5}} {
			if n > 16<<20 && shape[0] > 1 {
				continue
			}
			t.Run(fmt.Sprintf("%d bytes from %d to %d", n, shape[0], shape[1]), func(t *testing.T) {
				task, err := pool.Alloc(r.source(n, shape[0]), r.target(n, shape[1]))
				require.NoError(t, err)
				require.NoError(t, task.TrySubmit())
				r.until("it is copied", func() bool { return copies.count() == 1 })
				require.Empty(t, copies.errs)
				assert.Equal(t, n, task.Length())
				same(t, task.Source().AppendBytes(nil), task.Destination().AppendBytes(nil))
				copies.free(t)
			})
		}
	}
	assert.Equal(t, []pe.State{pe.Running}, r.states)
}

// Memory maps that lie next to each other have keys of their own all the same.
func TestNeighbours(t *testing.T) {
	r := newFixture(t, 4096, dma.Config{})
	var copies outcome
	pool := must(r.ctx.CopyPool(2, copies.ok, copies.bad))
	r.start()
	memory := make([]byte, 8192)
	fill(memory, 9)
	low := must(mmap.Register(r.dev, memory[:4096], mmap.LocalReadWrite))
	high := must(mmap.Register(r.dev, memory[4096:], mmap.LocalReadWrite))
	out := must(pool.Alloc(
		bufinv.List(r.bufs.Source(low, 3000, 1096), r.bufs.Source(high, 0, 1000)),
		r.bufs.Target(r.dst, 0, 4096)))
	in := must(pool.Alloc(
		r.bufs.Source(r.src, 0, 2000),
		bufinv.List(r.bufs.Target(low, 4000, 96), r.bufs.Target(high, 0, 100), r.bufs.Target(high, 100, 4000-100+10))))
	require.NoError(t, out.Submit())
	r.until("it is copied", func() bool { return copies.count() == 1 })
	require.Empty(t, copies.errs)
	same(t, memory[3000:3000+2096], out.Destination().Bytes())
	require.NoError(t, in.Submit())
	r.until("it is copied", func() bool { return copies.count() == 2 })
	require.Empty(t, copies.errs)
	same(t, r.src.Bytes()[:2000], memory[4000:6000])
	copies.free(t)
	require.NoError(t, low.Close())
	require.NoError(t, high.Close())
}
