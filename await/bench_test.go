package await_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// writer is a rig with a pool of writes of 8 bytes.
type writer struct {
	*rig
	writes *rdma.Pool
}

func newWriter(b *testing.B, n int) *writer {
	w := &writer{rig: newRig(b)}
	var err error
	w.writes, err = w.a.Pool(n, pe.TaskDone, pe.TaskFailed)
	require.NoError(b, err)
	w.connect(b)
	b.ReportAllocs()
	return w
}

func (w *writer) alloc() (*rdma.Task, error) {
	return w.writes.Write(w.conn, w.bufs.Source(w.memA, 0, 8), w.bufs.Target(w.remote, 0, 8))
}

// BenchmarkCallbacks writes with n tasks in flight, each submitting the next one
// in its callback.
func BenchmarkCallbacks(b *testing.B) {
	for _, n := range []int{1, 16} {
		b.Run(inFlight(n), func(b *testing.B) {
			w := newWriter(b, n)
			left, out := b.N, 0
			ended := make(chan error, 1)
			var next func(t *rdma.Task, err error)
			begin := func() error {
				t, err := w.alloc()
				if err == nil {
					left--
					out++
					err = pe.SubmitOrFree(t, nil, next)
				}
				return err
			}
			next = func(t *rdma.Task, err error) {
				out--
				if e := t.Free(); err == nil {
					err = e
				}
				if err == nil && left > 0 {
					err = begin()
				}
				if err != nil || left == 0 && out == 0 {
					ended <- err
				}
			}
			b.ResetTimer()
			require.NoError(b, w.engine.Do(func() {
				for range min(n, b.N) {
					if err := begin(); err != nil {
						ended <- err
					}
				}
			}))
			require.NoError(b, <-ended)
			b.StopTimer()
		})
	}
}

// BenchmarkTask writes from n goroutines, each waiting for its task.
func BenchmarkTask(b *testing.B) {
	for _, n := range []int{1, 16} {
		b.Run(inFlight(n), func(b *testing.B) {
			w := newWriter(b, n)
			ctx, cancel := context.WithCancel(background)
			defer cancel()
			var left atomic.Int64
			left.Store(int64(b.N))
			b.ResetTimer()
			var all sync.WaitGroup
			for range n {
				all.Go(func() {
					for left.Add(-1) >= 0 {
						if err := await.Task(ctx, w.engine, w.alloc, nil); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
			b.StopTimer()
		})
	}
}

func inFlight(n int) string {
	if n == 1 {
		return "one"
	}
	return "many"
}

// BenchmarkFunc is the way to the engine's goroutine and back.
func BenchmarkFunc(b *testing.B) {
	e := drive(b)
	b.ReportAllocs()
	for b.Loop() {
		if err := await.Func(background, e, func() error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkMayBlock is what it costs to look for a deadlock.
func BenchmarkMayBlock(b *testing.B) {
	e := drive(b)
	b.ReportAllocs()
	for b.Loop() {
		if err := e.Friends(friend.Package{}).MayBlock("wait"); err != nil {
			b.Fatal(err)
		}
	}
}
