package syncevent

import (
	"fmt"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/pe/backend"
)

// Pool is a pool of tasks. The methods that allocate a task choose its operation.
type Pool struct {
	tasks  *pe.Pool[Task]
	done   func(*Task)
	failed func(*Task, error)
}

// Pool makes a pool of n tasks, at most pe.MaxTasks. done and failed run on the engine's
// goroutine, inside Progress; the error is a *TaskError. Stop ends a wait through failed, with
// an error that matches ErrFlushed. A context can have several pools, with different
// callbacks. Pool is legal in Idle. Its errors are those of backend.NewPool, and ErrInvalid where a
// function is missing.
func (c *Context) Pool(n int, done func(*Task), failed func(*Task, error)) (*Pool, error) {
	if done == nil || failed == nil {
		return nil, fmt.Errorf("syncevent: make a pool: %w: the function done or failed is nil", ErrInvalid)
	}
	p := &Pool{done: done, failed: failed}
	var err error
	p.tasks, err = backend.NewPool(c.control, "sync event", n,
		func(t *Task) *pe.Task { return &t.Task },
		func(t *Task) {
			t.control, t.ctx, t.pool, t.waiter.task, t.node.Value = c.control, c, p, t, t
			c.tasks = append(c.tasks, t)
		},
		func(t *Task) { _ = t.releaseEvent() })
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Cap is the number of tasks that the pool was made with.
func (p *Pool) Cap() int { return p.tasks.Cap() }

// Available is the number of tasks that can be allocated now.
func (p *Pool) Available() int { return p.tasks.Available() }

// Get allocates a task that gets the value of e. The task holds e until it is freed. Errors of
// the four operations match those of pe.Pool.Alloc, ErrInvalid, ErrRemote and ErrClosed, and,
// for operations that change the value, ErrPublisher.
func (p *Pool) Get(e *Event) (*Task, error) { return p.alloc(OpGet, e, 0) }

// Set allocates a task that sets e to value.
func (p *Pool) Set(e *Event, value uint64) (*Task, error) { return p.alloc(OpSet, e, value) }

// Add allocates a task that adds value to that of e atomically, modulo 2^64.
func (p *Pool) Add(e *Event, value uint64) (*Task, error) { return p.alloc(OpAdd, e, value) }

// Wait allocates a task that waits until the condition holds for the value of e. A change
// wakes it as it wakes Event.Wait; see the package comment. It may miss a value that another
// change replaces soon after. Errors match ErrInvalid too, as in Event.Wait.
func (p *Pool) Wait(e *Event, c Condition) (*Task, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("syncevent: allocate a wait: %w", err)
	}
	t, err := p.alloc(OpWait, e, 0)
	if err == nil {
		t.waiter.Condition = c
	}
	return t, err
}

// alloc takes a task out of the pool, and sets its operation and event.
func (p *Pool) alloc(op Operation, e *Event, value uint64) (*Task, error) {
	t, err := p.tasks.Alloc()
	if err != nil {
		return nil, err
	}
	t.op, t.value, t.waiter.seen = op, value, 0
	if err := t.holdEvent(e); err != nil {
		_ = p.tasks.Free(t) // it was taken just now
		return nil, fmt.Errorf("syncevent: allocate a %v: %w", op, err)
	}
	return t, nil
}
