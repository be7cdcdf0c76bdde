package load

import (
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
	"github.com/verbena-rdma/verbena/rdma"
)

// allocFunc allocates the i-th task of a flow.
type allocFunc func(f *flow, i int) (*rdma.Task, error)

// makePool makes the pool of the operation that is measured.
func (w *worker) makePool(n int) error {
	p, err := w.rdma.Pool(n, w.done, func(_ *rdma.Task, err error) { w.taskFailed(err) })
	if err != nil {
		return err
	}
	switch w.plan.Test.Op {
	case plan.Write:
		w.alloc = func(f *flow, i int) (*rdma.Task, error) { return p.Write(f.conn, f.source(i), f.target(i)) }
	case plan.WriteImm:
		w.alloc = func(f *flow, i int) (*rdma.Task, error) {
			return p.WriteImm(f.conn, f.source(i), f.target(i), uint32(i))
		}
	case plan.Read:
		w.alloc = func(f *flow, i int) (*rdma.Task, error) {
			l := &w.layout
			slot := l.Slot(f.index, i)
			return p.Read(f.conn, bufinv.Source(w.remote, l.OutOffset(slot)-w.remoteOut, w.size), bufinv.Target(w.local, l.InOffset(slot), w.size))
		}
	case plan.Send:
		w.alloc = func(f *flow, i int) (*rdma.Task, error) { return p.Send(f.conn, f.source(i)) }
	case plan.FetchAdd:
		w.alloc = func(f *flow, i int) (*rdma.Task, error) { return p.FetchAdd(f.conn, f.target(i), 1) }
	case plan.CompareSwap:
		w.alloc = func(f *flow, i int) (*rdma.Task, error) { return p.CompareSwap(f.conn, f.target(i), 0, 1) }
	default:
		return fmt.Errorf("there is no operation %v", w.plan.Test.Op)
	}
	return nil
}

// flow is the requests of one connection. They complete in order.
type flow struct {
	w         *worker
	index     int // among those of the worker
	conn      *rdma.Connection
	tasks     []*rdma.Task // submitted in turn, as a ring
	posted    int64
	completed int64
	limit     int64 // the value of posted at which to stop
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

// next returns the next task to submit.
func (f *flow) next() *rdma.Task {
	t := f.tasks[f.posted%int64(len(f.tasks))]
	if t.Operation() == rdma.OpCompareSwap {
		// Each swap replaces the value that the previous one left. A task in flight keeps its
		// values.
		n := uint64(f.posted)
		_ = t.SetValues(n, n+1) // fails for a task in flight, whose submission then fails too
	}
	return t
}
