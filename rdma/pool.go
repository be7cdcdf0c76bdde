package rdma

import (
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
	tasks, err := pe.NewPool(c.control, op.String(), n, taskOf, init, drop)
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
	shared bool // it is the context's shared pool
}

// Pool is a pool of tasks of a context of connections. A task can do any operation; the
// methods of the pool allocate it for one.
type Pool struct{ taskPool }

// DatagramPool is a pool of tasks of a context of datagrams. A task can do any operation; the
// methods of the pool allocate it for one.
type DatagramPool struct{ taskPool }

// Pool makes a pool of n tasks, at most pe.MaxTasks. done is called for each task that
// succeeds, and failed for each that fails, on the engine's goroutine, inside Progress; the
// error is a *TaskError, except where buffers were changed in flight. A context can have
// several pools, with different callbacks. It is legal in Idle. Its errors are those of
// pe.NewPool, and ErrInvalid if a function is missing.
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
	word := c.scratch.words
	err := p.fill(c, 0, n, done, failed, peTaskOf,
		func(t *Task) {
			t.register(c, p, word)
			word++
		}, dropTask)
	if err != nil {
		return err
	}
	c.scratch.words += n
	c.lanes.tasks += n
	return nil
}

// SharedTasks is how many tasks the shared pool of a context has.
const SharedTasks = 64

// sharedDepth is the send queue size of a connection if the context has no other pools.
const sharedDepth = 16

// SharedPool returns the context's shared pool. It has SharedTasks tasks, with the callbacks
// pe.Done and pe.Failed: pe.SubmitOrFree sets the callback of a task. Unlike other pools, it can
// be made after Start: the context keeps room for these tasks. Without other pools, the
// connections' send queues take 16 tasks at a time, unless Config.SendQueueSize is set.
//
// It is legal in Idle, Starting and Running, on the engine's goroutine. Errors match
// pe.ErrBadState, pe.ErrBusy, pe.ErrClosed, and ErrRange if the other pools leave no room in
// the device's completion queue.
func (c *Connections) SharedPool() (*Pool, error) {
	if err := c.sharedPool(&c.shared.taskPool); err != nil {
		return nil, err
	}
	return &c.shared, nil
}

// SharedPool returns the context's shared pool, as Connections.SharedPool does.
func (c *Datagrams) SharedPool() (*DatagramPool, error) {
	if err := c.sharedPool(&c.shared.taskPool); err != nil {
		return nil, err
	}
	return &c.shared, nil
}

// sharedPool makes the shared pool on the first call.
func (c *parts) sharedPool(p *taskPool) error {
	made := p.tasks != nil
	if made && c.lanes.sharedFits && c.State() == pe.Running {
		return nil
	}
	const op = "use the shared pool"
	if err := c.control.Owned(op); err != nil {
		return err
	}
	if err := c.control.Require(op, pe.Idle, pe.Starting, pe.Running); err != nil {
		return err
	}
	if c.State() != pe.Idle && !c.lanes.sharedFits {
		return c.noSharedRoom()
	}
	if made {
		return nil
	}
	word := 0
	tasks, err := pe.AddPool(c.control, "shared", SharedTasks, peTaskOf,
		func(t *Task) {
			t.register(c, p, word)
			word++
		}, dropTask)
	if err != nil {
		return err
	}
	tasks.AllowStarting()
	p.pool, p.shared = pool[Task]{tasks, pe.Done[*Task], pe.Failed[*Task]}, true
	return nil
}

func (c *parts) noSharedRoom() error {
	return fmt.Errorf("rdma: use the shared pool of context %q: %w: the other pools hold %d tasks, and the completion queue of %s has no room for %d more; make the pools smaller",
		c.set.Name, ErrRange, c.lanes.tasks+c.receives.total, c.dev.Name(), SharedTasks)
}

func peTaskOf(t *Task) *pe.Task { return &t.Task }
func dropTask(t *Task)          { _ = t.drop() }

// register makes a task known to its context, once.
func (t *Task) register(c *parts, p *taskPool, word int) {
	t.control, t.ctx, t.pool, t.word = c.control, c, p, word
	t.sgl = make([]verbs.SGE, 0, max(c.set.MaxSendSGE, 1))
	c.lanes.Add(&t.send, (*completer)(t))
}

// allocate takes a task out of the pool, for an operation.
func (p *taskPool) allocate(op Operation) (*Task, error) {
	t, err := p.tasks.Alloc()
	if err != nil {
		return nil, err
	}
	c := t.ctx
	switch {
	case p.shared && !c.lanes.sharedFits:
		err = c.noSharedRoom()
	case !c.set.caps.Supports(op):
		err = fmt.Errorf("rdma: allocate a %v: %w by %s with %v", op, ErrNotSupported, c.dev.Name(), c.set.Transport)
	default:
		t.op, t.length, t.result, t.appends = op, 0, 0, false
		wr := &t.send.WR
		wr.Op, wr.Imm, wr.CompareAdd, wr.Swap, wr.InvalidateRKey = operations[op].verb, 0, 0, 0, 0
		return t, nil
	}
	_ = p.tasks.Free(t) // it was taken just now
	return nil, err
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
