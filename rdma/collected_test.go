package rdma_test

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// When a map of Go memory is closed and its tasks are freed, the collector frees the memory, though the connection and
// the pool go on.
func TestClosedMemoryIsCollected(t *testing.T) {
	for name, open := range map[string]func(*testing.T) verbs.Device{"shared memory": openSoft, "network": openByUDP} {
		cfg := rdma.Config{Keepalive: time.Hour}
		r := newRigOn(t, open(t), open(t), cfg, cfg)
		var done outcome[*rdma.Task]
		pool := must(r.a.ctx.Pool(8, done.ok, done.bad))
		r.connect(1)
		a := r.a.conns[0]
		var collected atomic.Int32
		const n = 8
		for i := range n {
			mem := make([]byte, 1<<20)
			runtime.AddCleanup(&mem[0], func(int) { collected.Add(1) }, 0)
			m := must(mmap.Register(r.a.ctx.Device(), mem, mmap.LocalReadWrite))
			done = outcome[*rdma.Task]{}
			src, dst := r.a.bufs.Source(m, 0, 8), r.a.bufs.Target(r.a.peer, 0, 8)
			task, err := pool.Write(a, src, dst)
			if i%2 == 1 {
				src, dst = r.a.bufs.Source(r.a.peer, 0, 8), r.a.bufs.Target(m, 0, 8)
				freeEach(t, []anyTask{task})
				task, err = pool.Read(a, src, dst)
			}
			require.NoError(t, err)
			require.NoError(t, task.Submit())
			r.until("it is done", func() bool { return done.count() == 1 })
			require.Empty(t, done.errs)
			freeEach(t, []anyTask{done.done[0]})
			require.NoError(t, m.Close())
		}
		require.Eventually(t, func() bool {
			runtime.GC()
			return collected.Load() == n
		}, time.Minute, 10*time.Millisecond, name)
	}
}
