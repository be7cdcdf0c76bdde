package syncevent

import "fmt"

// WaitPool is a pool of waits.
type WaitPool struct{ pool[WaitTask] }

// WaitTask waits until a condition holds for the value of an event. It is woken
// as a sleeping wait of the event is; see the package comment.
type WaitTask struct {
	task
	pool   *WaitPool
	waiter waiter
}

// post adds the task to the waiters of the event, which wakes it at once if its
// condition holds.
func (t *WaitTask) post() error {
	t.ev.mu.Lock()
	defer t.ev.mu.Unlock()
	t.ev.addWaiter(&t.waiter)
	return nil
}

// conditionMet hands the task to the engine, for its callback. It may be called from
// any goroutine.
func (t *WaitTask) conditionMet() {
	c := t.ctx
	c.mu.Lock()
	c.ready.Push(&t.node)
	c.mu.Unlock()
	c.control.Wake()
}

func (t *WaitTask) do()              {}
func (t *WaitTask) succeeded()       { t.pool.done(t) }
func (t *WaitTask) failed(err error) { t.pool.failed(t, err) }

// WaitPool makes a pool of n waits. done and failed run on the engine's goroutine,
// inside Progress. Stop ends a wait through failed, with a *TaskError that matches
// ErrFlushed. It is legal in Idle. Its errors are those of pe.NewPool, and
// ErrInvalid.
func (c *Context) WaitPool(n int, done func(*WaitTask), failed func(*WaitTask, error)) (*WaitPool, error) {
	p := &WaitPool{}
	var waits []*WaitTask
	err := makePool(c, &p.pool, OpWait, n, done, failed,
		func(t *WaitTask) *task { return &t.task },
		func(t *WaitTask) kind {
			t.pool, t.waiter.task = p, t
			waits = append(waits, t)
			return t
		})
	if err != nil {
		return nil, err
	}
	c.waits = append(c.waits, waits...)
	return p, nil
}

// Alloc takes a task out of the pool that waits until the condition holds for the value of
// e, and holds e until the task is freed. The wait may miss a value that another change
// replaces soon after. Errors match those of pe.Pool.Alloc, and ErrInvalid, as in
// Event.Wait, ErrRemote and ErrClosed.
func (p *WaitPool) Alloc(e *Event, c Condition) (*WaitTask, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("syncevent: allocate a wait: %w", err)
	}
	t, err := p.alloc(e)
	if err != nil {
		return nil, err
	}
	t.waiter.Condition, t.waiter.seen = c, 0
	return t, nil
}

// Free puts the task back into its pool and lets go of its event. It is legal
// whenever the task is not in flight. Errors are those of pe.Pool.Free.
func (t *WaitTask) Free() error {
	if t.pool == nil {
		return errNoPool
	}
	return t.pool.release(t)
}

// Value is the value that fulfilled the condition, once the task has completed. The
// event may have another value by now.
func (t *WaitTask) Value() uint64 { return t.waiter.seen }

// SetCondition makes the next submission wait for another condition. It fails with
// ErrInvalid, as in Event.Wait, pe.ErrInUse (in flight) and pe.ErrFreed.
func (t *WaitTask) SetCondition(c Condition) error {
	if err := t.control.MayChange(&t.Task, "condition"); err != nil {
		return err
	}
	if err := c.check(); err != nil {
		return fmt.Errorf("syncevent: set the condition of a wait: %w", err)
	}
	t.waiter.Condition = c
	return nil
}
