package load

import (
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
	"github.com/verbena-rdma/verbena/rdma"
)

// allocFunc allocates the i-th task of a flow.
type allocFunc func(f *flow, i int) (rdma.Task, error)

// callbacks are those of a pool, which are the same for all kinds of task.
func callbacks[T rdma.Task](w *worker) (done func(T), failed func(T, error)) {
	return func(t T) { w.done(t) }, func(_ T, err error) { w.taskFailed(err) }
}

// makePool makes the pool of the operation that is measured.
func (w *worker) makePool(n int) (err error) {
	switch w.plan.Test.Op {
	case plan.Write:
		done, failed := callbacks[*rdma.WriteTask](w)
		var p *rdma.WritePool
		p, err = w.rdma.WritePool(n, done, failed)
		w.alloc = func(f *flow, i int) (rdma.Task, error) { return p.Alloc(f.conn, f.source(i), f.target(i)) }
	case plan.WriteImm:
		done, failed := callbacks[*rdma.WriteImmTask](w)
		var p *rdma.WriteImmPool
		p, err = w.rdma.WriteImmPool(n, done, failed)
		w.alloc = func(f *flow, i int) (rdma.Task, error) {
			return p.Alloc(f.conn, f.source(i), f.target(i), uint32(i))
		}
	case plan.Read:
		done, failed := callbacks[*rdma.ReadTask](w)
		var p *rdma.ReadPool
		p, err = w.rdma.ReadPool(n, done, failed)
		w.alloc = func(f *flow, i int) (rdma.Task, error) {
			l := &w.layout
			slot := l.Slot(f.index, i)
			return p.Alloc(f.conn, bufinv.Source(w.remote, l.OutOffset(slot)-w.remoteOut, w.size), bufinv.Target(w.local, l.InOffset(slot), w.size))
		}
	case plan.Send:
		done, failed := callbacks[*rdma.SendTask](w)
		var p *rdma.SendPool
		p, err = w.rdma.SendPool(n, done, failed)
		w.alloc = func(f *flow, i int) (rdma.Task, error) { return p.Alloc(f.conn, f.source(i)) }
	case plan.FetchAdd:
		done, failed := callbacks[*rdma.FetchAddTask](w)
		var p *rdma.FetchAddPool
		p, err = w.rdma.FetchAddPool(n, done, failed)
		w.alloc = func(f *flow, i int) (rdma.Task, error) { return p.Alloc(f.conn, f.target(i), nil, 1) }
	case plan.CompareSwap:
		done, failed := callbacks[*rdma.CompareSwapTask](w)
		var p *rdma.CompareSwapPool
		p, err = w.rdma.CompareSwapPool(n, done, failed)
		w.alloc = func(f *flow, i int) (rdma.Task, error) { return p.Alloc(f.conn, f.target(i), nil, 0, 1) }
	default:
		err = fmt.Errorf("there is no %v", w.plan.Test.Op)
	}
	return err
}

// flow is the requests of one connection, which complete in their order.
type flow struct {
	w         *worker
	index     int // among those of the worker
	conn      *rdma.Connection
	tasks     []rdma.Task // submitted one after the other, round and round
	posted    int64
	completed int64
	limit     int64 // of posted
}

func (f *flow) source(i int) *bufinv.Buf {
	return bufinv.Source(f.w.local, f.w.layout.OutOffset(f.w.layout.Slot(f.index, i)), f.w.size)
}

func (f *flow) target(i int) *bufinv.Buf {
	return bufinv.Target(f.w.remote, f.w.layout.InOffset(f.w.layout.Slot(f.index, i))-f.w.remoteIn, f.w.size)
}

// prepare allocates the tasks of a step.
func (f *flow) prepare() error {
	f.posted, f.completed, f.limit = 0, 0, 0
	for i := range f.w.plan.Depth {
		t, err := f.w.alloc(f, i)
		if err != nil {
			return err
		}
		t.SetUserData(f)
		f.tasks = append(f.tasks, t)
	}
	return nil
}

// next is the task that is submitted next.
func (f *flow) next() rdma.Task {
	t := f.tasks[f.posted%int64(len(f.tasks))]
	if swap, ok := t.(*rdma.CompareSwapTask); ok {
		// Each replaces what the one before has left; in flight it has not changed.
		n := uint64(f.posted)
		_ = swap.SetValues(n, n+1) // fails in flight, and then so does its submission
	}
	return t
}
