package dma_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/dma"
	"github.com/verbena-rdma/verbena/pe"
)

// shape draws a list that holds n bytes, of elements in order and out of order,
// some of them empty, and returns where in the memory they are.
func shape(t *rapid.T, name string, n, memory int) [][2]int {
	parts := rapid.IntRange(1, 24).Draw(t, name+" parts")
	cuts := make([]int, parts)
	for i := range parts - 1 {
		cuts[i] = rapid.IntRange(0, n).Draw(t, name+" cut")
	}
	cuts[parts-1] = n
	slices.Sort(cuts)
	gap := (memory - n) / parts
	var list [][2]int
	off, last := 0, 0
	for _, c := range cuts {
		off += rapid.IntRange(0, gap).Draw(t, name+" gap")
		list = append(list, [2]int{off, c - last})
		off += c - last
		last = c
	}
	if rapid.Bool().Draw(t, name+" shuffled") {
		list = rapid.Permutation(list).Draw(t, name+" order")
	}
	return list
}

// chain makes the list, with buffers that end in unused memory now and then.
func chain(parts [][2]int, buf func(off, n int) *bufinv.Buf) *bufinv.Buf {
	var bufs []*bufinv.Buf
	for _, p := range parts {
		bufs = append(bufs, buf(p[0], p[1]))
	}
	return bufinv.List(bufs...)
}

// TestModel compares copies with plain ones, with lists of any shape on both
// sides, many copies in flight, queues and lists that are short.
func TestModel(t *testing.T) {
	const (
		memory = 256 << 10
		slots  = 8
	)
	for _, cfg := range []dma.Config{{}, {QueueSize: 1, MaxSGE: 1}, {QueueSize: 3, MaxSGE: 2}} {
		r := newFixture(t, slots*memory+1, cfg) // one byte behind the last, for elements without data
		var copies outcome
		pool := must(r.ctx.CopyPool(slots, copies.ok, copies.bad))
		r.start()
		rapid.Check(t, func(t *rapid.T) {
			fill(r.src.Bytes(), byte(rapid.IntRange(0, 255).Draw(t, "seed")))
			clear(r.dst.Bytes())
			want := make([]byte, r.dst.Len())
			inFlight := rapid.IntRange(1, slots).Draw(t, "copies")
			for i := range inFlight {
				base := i * memory
				n := rapid.OneOf(rapid.IntRange(1, 100), rapid.IntRange(1, memory)).Draw(t, "bytes")
				from, to := shape(t, "source", n, memory), shape(t, "destination", n, memory)
				var data []byte
				src := chain(from, func(off, n int) *bufinv.Buf {
					data = append(data, r.src.Bytes()[base+off:base+off+n]...)
					b := r.bufs.Source(r.src, base+off, max(n, 1))
					require.NoError(t, b.SetData(0, n))
					return b
				})
				dst := chain(to, func(off, n int) *bufinv.Buf {
					data = data[copy(want[base+off:base+off+n], data):]
					b := r.bufs.Target(r.dst, base+off, max(n, 1))
					if n == 0 {
						require.NoError(t, b.SetData(1, 0)) // no room
					}
					return b
				})
				task, err := pool.Alloc(src, dst)
				require.NoError(t, err)
				flags := rapid.SampledFrom([]pe.SubmitFlags{0, pe.Aggregate, pe.OptimizeReports, pe.Aggregate | pe.OptimizeReports}).Draw(t, "flags")
				require.NoError(t, task.Submit(flags))
				task.SetUserData(i)
			}
			r.until("all are copied", func() bool { return copies.count() == inFlight })
			require.Empty(t, copies.errs)
			for i, task := range copies.done {
				require.Equal(t, i, task.UserData(), "in the order of submission")
				require.Equal(t, task.Length(), task.Destination().ListDataLen())
			}
			same(r.t, want, r.dst.Bytes())
			copies.free(r.t)
		})
	}
}
