package rdma_test

import (
	"fmt"
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
	a, b       *rdma.Connections
	memA, memB *mmap.Map
	remote     *mmap.Map
	bufs       *bufinv.Inventory
	conn       *rdma.Connection
}

func newBenchRig(b *testing.B) *benchRig {
	b.Helper()
	return newBenchRigFor(b, 1)
}

// newBenchRigFor is one for so many connections.
func newBenchRigFor(b *testing.B, connections int) *benchRig {
	b.Helper()
	r := &benchRig{engine: pe.New(pe.Config{}), bufs: must(bufinv.New(1024))}
	for i := range r.devs {
		r.devs[i] = must(soft.Open(soft.Config{}))
	}
	r.a = must(rdma.New(r.devs[0], rdma.Config{MaxConnections: connections}))
	r.b = must(rdma.New(r.devs[1], rdma.Config{Permissions: everything, MaxConnections: connections}))
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

func (r *benchRig) connect(b *testing.B) { r.conn = r.connectMany(b, 1)[0] }

// connectMany returns the ends of a.
func (r *benchRig) connectMany(b *testing.B, n int) (conns []*rdma.Connection) {
	r.check(b, r.a.Start(), r.b.Start())
	for range n {
		conn, descA, err := r.a.Export()
		r.check(b, err)
		peer, descB, err := r.b.Export()
		r.check(b, err, conn.Connect(descB), peer.Connect(descA))
		conns = append(conns, conn)
	}
	r.drive(b, func() bool { return r.a.State() == pe.Running && r.b.State() == pe.Running })
	return conns
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
			pool := must(r.a.Pool(batch, func(*rdma.Task) { done++ }, func(_ *rdma.Task, err error) { failure = err }))
			r.connect(b)
			tasks := make([]*rdma.Task, batch)
			for i := range tasks {
				tasks[i] = must(pool.Write(r.conn, r.bufs.Source(r.memA, 0, size), r.bufs.Target(r.remote, 0, size)))
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

// BenchmarkInTurns writes 8 bytes, run times on one connection, then on the next, with
// as many writes under way whatever the number of connections.
func BenchmarkInTurns(b *testing.B) {
	for _, run := range []int{1, 16, 64} {
		for _, n := range []int{1, 100, 1000, 10_000} {
			b.Run(fmt.Sprintf("run%d/connections%d", run, n), func(b *testing.B) { benchmarkInTurns(b, n, run) })
		}
	}
}

func benchmarkInTurns(b *testing.B, n, run int) {
	const window = 512
	r := newBenchRigFor(b, n)
	left := 0
	var failure error
	next, ofRun := 0, 0
	var conns []*rdma.Connection
	again := func(t *rdma.Task) {
		if left == 0 {
			return
		}
		left--
		if ofRun == run {
			next, ofRun = (next+1)%n, 0
		}
		ofRun++
		err := t.SetConnection(conns[next])
		if err == nil {
			err = t.Submit()
		}
		if err != nil {
			failure = err
		}
	}
	pool := must(r.a.Pool(window, again, func(_ *rdma.Task, err error) { failure = err }))
	conns = r.connectMany(b, n)
	tasks := make([]*rdma.Task, window)
	for i := range tasks {
		tasks[i] = must(pool.Write(conns[0], r.bufs.Source(r.memA, 0, 8), r.bufs.Target(r.remote, 0, 8)))
	}
	play := func(writes int) {
		left = writes
		for _, t := range tasks {
			again(t)
		}
		for _, t := range tasks {
			for t.InFlight() && failure == nil {
				_, failure = r.engine.Progress()
			}
		}
		if failure != nil {
			b.Fatal(failure)
		}
	}
	play(max(run*n, 10*window)) // every connection has been used
	b.ReportAllocs()
	b.ResetTimer()
	play(b.N)
	b.StopTimer()
	r.check(b, rdma.FreeAll(tasks))
	r.close(b)
}
