package rdma

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/syncevent"
	"github.com/verbena-rdma/verbena/verbs"
)

// pool is what the pools of tasks, receives and windows have in common.
type pool[T any] struct {
	tasks  *pe.Pool[T]
	done   func(*T)
	failed func(*T, error)
}

// Cap is the number of tasks that the pool was made with.
func (p *pool[T]) Cap() int { return p.tasks.Cap() }

// String names the pool and its context.
func (p *pool[T]) String() string { return p.tasks.String() }

// Available is the number of tasks that can be allocated now.
func (p *pool[T]) Available() int { return p.tasks.Available() }

// fill makes the tasks of a pool, for one operation, which the device has to support, or for
// any if op is 0.
func (p *pool[T]) fill(c *parts, op Operation, n int, done func(*T), failed func(*T, error),
	taskOf func(*T) *pe.Task, init, drop func(*T),
) error {
	if err := c.control.Owned("make a pool of " + op.String() + "s"); err != nil {
		return err
	}
	if done == nil || failed == nil {
		return fmt.Errorf("rdma: make a pool of %vs: %w: give a function for tasks that succeed and one for tasks that fail", op, ErrInvalid)
	}
	if op != 0 && !c.set.caps.Supports(op) {
		return fmt.Errorf("rdma: make a pool of %vs: %w by %s", op, ErrNotSupported, c.dev.Name())
	}
	newPool := pe.NewPool[T]
	if op == 0 {
		newPool = pe.AddPool[T] // what tasks need is made with the pool, or they wait for it
	}
	tasks, err := newPool(c.control, op.String(), n, taskOf, init, drop)
	if err != nil {
		return err
	}
	tasks.AllowStarting() // a receive needs no connection, and other tasks need only their own
	*p = pool[T]{tasks, done, failed}
	return nil
}

// taskPool is what the pools of tasks of the two kinds of context have in common.
type taskPool struct {
	pool[Task]
	words words // of the tasks, by their number in the pool
}

// Pool is a pool of tasks of a context of connections. A task can do any operation; the
// methods of the pool allocate it for one.
type Pool struct{ taskPool }

// DatagramPool is a pool of tasks of a context of datagrams. A task can do any operation; the
// methods of the pool allocate it for one.
type DatagramPool struct{ taskPool }

// Pool makes a pool of n tasks, at most pe.MaxTasks. done is called for each task that
// succeeds, and failed for each that fails, on the engine's goroutine, inside Progress; the
// error is a *TaskError, except where buffers were changed in flight. With pe.Done and pe.Failed,
// each task has a function of its own: see pe.SubmitOrFree. A context can have several pools,
// with different callbacks.
//
// It is legal in Idle, Starting and Running. A pool that is made in Idle makes the queues at the
// device larger (Config.SendQueueSize); tasks of one that is made later wait, in order, while
// the queues are full. Its errors are those of pe.AddPool, ErrInvalid if a function is missing,
// and the device's.
func (c *Connections) Pool(n int, done func(*Task), failed func(*Task, error)) (*Pool, error) {
	p := &Pool{}
	if err := c.newPool(&p.taskPool, n, done, failed); err != nil {
		return nil, err
	}
	return p, nil
}

// Pool makes a pool of n tasks, as Connections.Pool does.
func (c *Datagrams) Pool(n int, done func(*Task), failed func(*Task, error)) (*DatagramPool, error) {
	p := &DatagramPool{}
	if err := c.newPool(&p.taskPool, n, done, failed); err != nil {
		return nil, err
	}
	return p, nil
}

func (c *parts) newPool(p *taskPool, n int, done func(*Task), failed func(*Task, error)) error {
	// The words come first, since a pool cannot be taken back. fill refuses another n.
	if c.set.caps.connections() && 1 <= n && n <= pe.MaxTasks { // others have no tasks that need words
		if err := c.control.Owned("make a pool of tasks"); err != nil {
			return err
		}
		p.words.n = n
		if err := c.scratch.add(&p.words); err != nil {
			return fmt.Errorf("rdma: make a pool of %d tasks in context %q: %w", n, c.set.Name, err)
		}
	}
	word := 0
	err := p.fill(c, 0, n, done, failed, peTaskOf,
		func(t *Task) {
			t.register(c, p, word)
			word++
		}, dropTask)
	if err != nil {
		return errors.Join(err, c.scratch.remove(&p.words))
	}
	c.lanes.tasks += n
	return nil
}

func peTaskOf(t *Task) *pe.Task { return &t.Task }
func dropTask(t *Task)          { _ = t.drop() }

// register makes a task known to its context, once.
func (t *Task) register(c *parts, p *taskPool, word int) {
	t.control, t.ctx, t.pool, t.word = c.control, c, p, word
	t.sgl = make([]verbs.SGE, 0, max(c.set.sendSGE, 1))
	c.lanes.Add(&t.send, (*completer)(t))
}

// allocate takes a task out of the pool, for an operation.
func (p *taskPool) allocate(op Operation) (*Task, error) {
	t, err := p.tasks.Alloc()
	if err != nil {
		return nil, err
	}
	if c := t.ctx; !c.set.caps.Supports(op) {
		_ = p.tasks.Free(t) // it was taken just now
		return nil, fmt.Errorf("rdma: allocate a %v: %w by %s with %v", op, ErrNotSupported, c.dev.Name(), c.set.Transport)
	}
	t.op, t.length, t.result, t.appends = op, 0, 0, false
	wr := &t.send.WR
	wr.Op, wr.Imm, wr.CompareAdd, wr.Swap, wr.InvalidateRKey = operations[op].verb, 0, 0, 0, 0
	return t, nil
}

// alloc takes a task out of the pool and gives it its buffers.
func (p *taskPool) alloc(op Operation, to target, local, remote *bufinv.Buf) (*Task, error) {
	t, err := p.allocate(op)
	if err == nil {
		if err = t.setBuffers(to, local, remote); err == nil {
			return t, nil
		}
		err = p.allocFailed(t, err)
	}
	freeAll(local, remote)
	return nil, err
}

// allocEvent takes a task out of the pool and gives it its sync event.
func (p *taskPool) allocEvent(op Operation, conn *Connection, ev *syncevent.Event) (*Task, error) {
	t, err := p.allocate(op)
	if err != nil {
		return nil, err
	}
	if err := t.setEvent(conn, ev); err != nil {
		return nil, p.allocFailed(t, err)
	}
	return t, nil
}

// allocFailed puts back a task whose allocation failed.
func (p *taskPool) allocFailed(t *Task, err error) error {
	_ = p.tasks.Free(t) // it was taken just now
	return fmt.Errorf("rdma: allocate a %v: %w", t.op, err)
}

// completed runs the callback of a task, which is no longer in flight.
func (p *taskPool) completed(t *Task, err error) {
	if err != nil {
		p.failed(t, err)
		return
	}
	p.done(t)
}

// freeAll drops the buffers of a failed allocation.
func freeAll(bufs ...*bufinv.Buf) {
	for _, b := range bufs {
		_ = b.Free() // the error at hand says more
	}
}
