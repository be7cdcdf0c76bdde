package rdma_test

import (
	"strconv"
	"testing"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
)

// benchRig is two contexts on two devices in one program.
type benchRig struct {
	engine     *pe.Engine
	devs       [2]*soft.Device
	a, b       *rdma.Context
	memA, memB *mmap.Map
	remote     *mmap.Map
	bufs       *bufinv.Inventory
	conn       *rdma.Connection
}

func newBenchRig(b *testing.B) *benchRig {
	b.Helper()
	r := &benchRig{engine: pe.New(pe.Config{}), bufs: must(bufinv.New(1024))}
	for i := range r.devs {
		r.devs[i] = must(soft.Open(soft.Config{}))
	}
	r.a = must(rdma.New(r.devs[0], rdma.Config{}))
	r.b = must(rdma.New(r.devs[1], rdma.Config{Permissions: everything}))
	r.memA = must(mmap.Alloc(r.devs[0], memorySize, everything))
	r.memB = must(mmap.Alloc(r.devs[1], memorySize, everything))
	r.remote = must(mmap.Import(r.devs[0], must(r.memB.Export(r.devs[1]))))
	r.check(b, r.engine.Connect(r.a), r.engine.Connect(r.b))
	return r
}

func (r *benchRig) check(b *testing.B, errs ...error) {
	b.Helper()
	for _, err := range errs {
		if err != nil {
			b.Fatal(err)
		}
	}
}

func (r *benchRig) drive(b *testing.B, done func() bool) {
	for !done() {
		_, err := r.engine.Progress()
		r.check(b, err)
	}
}

func (r *benchRig) connect(b *testing.B) {
	r.check(b, r.a.Start(), r.b.Start())
	conn, descA, err := r.a.Export()
	r.check(b, err)
	peer, descB, err := r.b.Export()
	r.check(b, err, conn.Connect(descB), peer.Connect(descA))
	r.conn = conn
	r.drive(b, func() bool { return r.a.State() == pe.Running && r.b.State() == pe.Running })
}

func (r *benchRig) close(b *testing.B) {
	r.check(b, r.a.Stop(), r.b.Stop())
	r.drive(b, func() bool { return r.a.State() == pe.Idle && r.b.State() == pe.Idle })
	r.check(b, r.a.Close(), r.b.Close(), r.engine.Close(), r.remote.Close(), r.memA.Close(), r.memB.Close(),
		r.bufs.Close(), r.devs[0].Close(), r.devs[1].Close())
}

func sizeName(n int) string {
	if n >= 1<<20 {
		return strconv.Itoa(n>>20) + "MiB"
	}
	return strconv.Itoa(n) + "B"
}

func BenchmarkWrite(b *testing.B) {
	for _, size := range []int{8, 1 << 20} {
		b.Run(sizeName(size), func(b *testing.B) {
			r := newBenchRig(b)
			done := 0
			var failure error
			const batch = 64
			pool := must(r.a.WritePool(batch, func(*rdma.WriteTask) { done++ }, func(_ *rdma.WriteTask, err error) { failure = err }))
			r.connect(b)
			tasks := make([]*rdma.WriteTask, batch)
			for i := range tasks {
				tasks[i] = must(pool.Alloc(r.conn, r.bufs.Source(r.memA, 0, size), r.bufs.Target(r.remote, 0, size)))
			}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			b.ResetTimer()
			for n := 0; n < b.N; {
				todo := tasks[:min(batch, b.N-n)]
				done = 0
				if _, err := rdma.SubmitAll(todo, pe.OptimizeReports); err != nil {
					b.Fatal(err)
				}
				for done < len(todo) && failure == nil {
					_, failure = r.engine.Progress()
				}
				if failure != nil {
					b.Fatal(failure)
				}
				n += len(todo)
			}
			b.StopTimer()
			if err := rdma.FreeAll(tasks); err != nil {
				b.Fatal(err)
			}
			r.close(b)
		})
	}
}
