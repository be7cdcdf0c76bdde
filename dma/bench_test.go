package dma_test

import (
	"strconv"
	"testing"

	"github.com/verbena-rdma/verbena/dma"
	"github.com/verbena-rdma/verbena/pe"
)

func sizeName(n int) string {
	if n >= 1<<20 {
		return strconv.Itoa(n>>20) + "MiB"
	}
	return strconv.Itoa(n>>10) + "KiB"
}

// BenchmarkCopy is the software device beside the built-in copy, over the same
// memory: at each size a few copies in flight, at different places.
func BenchmarkCopy(b *testing.B) {
	const depth = 16
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20, 64 << 20} {
		places := min(depth, max(1, (64<<20)/size))
		b.Run(sizeName(size)+"/memcpy", func(b *testing.B) {
			r := newFixture(b, places*size, dma.Config{})
			src, dst := r.src.Bytes(), r.dst.Bytes()
			r.touch()
			b.SetBytes(int64(size))
			b.ResetTimer()
			for i := range b.N {
				at := i % places * size
				copy(dst[at:at+size], src[at:at+size])
			}
		})
		b.Run(sizeName(size)+"/dma", func(b *testing.B) { benchmarkCopy(b, size, places) })
	}
}

// touch gives all pages memory of their own: those never written share one.
func (r *fixture) touch() {
	fill(r.src.Bytes(), 1)
	fill(r.dst.Bytes(), 2)
}

func benchmarkCopy(b *testing.B, size, places int) {
	r := newFixture(b, places*size, dma.Config{})
	left, failure := 0, error(nil)
	pool := must(r.ctx.CopyPool(places, func(t *dma.CopyTask) {
		left--
		if left >= places {
			failure = t.Submit(pe.Aggregate)
			return
		}
		_ = t.Free()
	}, func(t *dma.CopyTask, err error) {
		failure = err
		_ = t.Free()
	}))
	r.start()
	r.touch()
	tasks := make([]*dma.CopyTask, places)
	for i := range tasks {
		tasks[i] = must(pool.Alloc(r.bufs.Source(r.src, i*size, size), r.bufs.Target(r.dst, i*size, size)))
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	left = max(b.N, places) // the last round is not shorter than the tasks are
	for _, t := range tasks {
		if err := t.Submit(pe.Aggregate); err != nil {
			b.Fatal(err)
		}
	}
	for left > 0 && failure == nil {
		if _, err := r.engine.Progress(); err != nil {
			b.Fatal(err)
		}
	}
	if failure != nil {
		b.Fatal(failure)
	}
}
