package rdma_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// No kind of task allocates memory on its way from Submit to its callback, nor
// from Alloc to Free.
func TestNothingIsAllocated(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	a, b := r.a, r.b
	done, arrived := 0, 0
	var failure error
	sends := must(a.ctx.Pool(1, func(*rdma.Task) { done++ }, func(_ *rdma.Task, err error) { failure = err }))
	sendImms := must(a.ctx.Pool(1, func(*rdma.Task) { done++ }, func(_ *rdma.Task, err error) { failure = err }))
	reads := must(a.ctx.Pool(1, func(*rdma.Task) { done++ }, func(_ *rdma.Task, err error) { failure = err }))
	writes := must(a.ctx.Pool(17, func(*rdma.Task) { done++ }, func(_ *rdma.Task, err error) { failure = err }))
	writeImms := must(a.ctx.Pool(1, func(*rdma.Task) { done++ }, func(_ *rdma.Task, err error) { failure = err }))
	swaps := must(a.ctx.Pool(1, func(*rdma.Task) { done++ }, func(_ *rdma.Task, err error) { failure = err }))
	adds := must(a.ctx.Pool(1, func(*rdma.Task) { done++ }, func(_ *rdma.Task, err error) { failure = err }))
	gets := must(a.ctx.Pool(1, func(*rdma.Task) { done++ }, func(_ *rdma.Task, err error) { failure = err }))
	sets := must(a.ctx.Pool(1, func(*rdma.Task) { done++ }, func(_ *rdma.Task, err error) { failure = err }))
	sums := must(a.ctx.Pool(1, func(*rdma.Task) { done++ }, func(_ *rdma.Task, err error) { failure = err }))
	recvs := must(b.ctx.ReceivePool(1, func(task *rdma.ReceiveTask) {
		arrived++
		failure = task.Submit()
	}, func(*rdma.ReceiveTask, error) {}))
	r.connect(1)
	r.settle()
	conn := a.conns[0]
	recv := must(recvs.Alloc(b.bufs.Target(b.mem, 0, 4096)))
	require.NoError(t, recv.Submit())

	send := must(sends.Send(conn, a.bufs.Source(a.mem, 0, 64)))
	sendImm := must(sendImms.SendImm(conn, a.bufs.Source(a.mem, 0, 64), 1))
	read := must(reads.Read(conn, a.bufs.Source(a.peer, 0, 64), a.bufs.Target(a.mem, 0, 64)))
	writeImm := must(writeImms.WriteImm(conn, a.bufs.Source(a.mem, 0, 64), a.bufs.Target(a.peer, 0, 64), 1))
	swap := withResult(must(swaps.CompareSwap(conn, a.bufs.Target(a.peer, 0, 8), 0, 0)), a.bufs.Target(a.mem, 0, 8))
	add := withResult(must(adds.FetchAdd(conn, a.bufs.Target(a.peer, 0, 8), 1)), a.bufs.Target(a.mem, 0, 8))
	word := must(writes.AtomicWrite(conn, a.bufs.Source(a.mem, 0, 8), a.bufs.Target(a.peer, 0, 8)))
	_, event := r.event(open)
	get, set, sum := must(gets.SyncEventGet(conn, event)), must(sets.SyncEventSet(conn, event, 1)), must(sums.SyncEventAdd(conn, event, 1))
	batch := make([]*rdma.Task, 15)
	for i := range batch {
		batch[i] = must(writes.Write(conn, a.bufs.Source(a.mem, 0, 64), a.bufs.Target(a.peer, 0, 64)))
	}

	submit := func(task *rdma.Task) func() int {
		return func() int {
			if failure == nil {
				failure = task.Submit()
			}
			return 1
		}
	}
	for _, c := range []struct {
		name     string
		run      func() int // returns how many tasks it submitted
		receives int
	}{
		{"send", submit(send), 1},
		{"send with immediate", submit(sendImm), 1},
		{"read", submit(read), 0},
		{"write with immediate", submit(writeImm), 1},
		{"compare-and-swap", submit(swap), 0},
		{"fetch-and-add", submit(add), 0},
		{"atomic write", submit(word), 0},
		{"sync event get", submit(get), 0},
		{"sync event set", submit(set), 0},
		{"sync event addition", submit(sum), 0},
		{"write batch", func() int {
			n, err := rdma.SubmitAll(batch, pe.OptimizeReports)
			failure = err
			return n
		}, 0},
		{"write from Alloc to Free", func() int {
			task, err := writes.Write(conn, a.bufs.Source(a.mem, 0, 8), a.bufs.Target(a.peer, 0, 8))
			if err != nil {
				failure = err
				return 0
			}
			failure = task.TrySubmit()
			for task.InFlight() && failure == nil {
				_, failure = r.engine.Progress()
			}
			if failure == nil {
				failure = task.Free()
			}
			return 1
		}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			allocs := testing.AllocsPerRun(2000, func() {
				wantDone, wantArrived := done, arrived+c.receives
				wantDone += c.run()
				for (done < wantDone || arrived < wantArrived) && failure == nil {
					_, failure = r.engine.Progress()
				}
			})
			require.NoError(t, failure)
			assert.Zero(t, allocs)
		})
	}
	require.NoError(t, rdma.FreeAll([]*rdma.Task{send, sendImm, read, writeImm, swap, add, word, get, set, sum}))
	require.NoError(t, rdma.FreeAll(batch))
	require.NoError(t, b.ctx.Stop())
	r.until("the receive came back", func() bool { return !recv.InFlight() })
	require.NoError(t, recv.Free())
}
