package syncevent

// SetPool is a pool of sets.
type SetPool struct{ pool[SetTask] }

// SetTask sets the value of an event.
type SetTask struct {
	task
	pool  *SetPool
	value uint64
}

func (t *SetTask) post() error      { t.enqueue(); return nil }
func (t *SetTask) do()              { t.ev.set(t.value) }
func (t *SetTask) succeeded()       { t.pool.done(t) }
func (t *SetTask) failed(err error) { t.pool.failed(t, err) }

// SetPool makes a pool of n sets, as GetPool does of gets.
func (c *Context) SetPool(n int, done func(*SetTask), failed func(*SetTask, error)) (*SetPool, error) {
	p := &SetPool{}
	err := makePool(c, &p.pool, OpSet, n, done, failed,
		func(t *SetTask) *task { return &t.task },
		func(t *SetTask) kind { t.pool = p; return t })
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Alloc takes a task out of the pool that sets e to value, and holds e until the
// task is freed. Errors match those of pe.Pool.Alloc, and ErrInvalid, ErrRemote,
// ErrPublisher and ErrClosed.
func (p *SetPool) Alloc(e *Event, value uint64) (*SetTask, error) {
	t, err := p.alloc(e)
	if err != nil {
		return nil, err
	}
	t.value = value
	return t, nil
}

// Free puts the task back into its pool and lets go of its event. It is legal
// whenever the task is not in flight. Errors are those of pe.Pool.Free.
func (t *SetTask) Free() error {
	if t.pool == nil {
		return errNoPool
	}
	return t.pool.release(t)
}

// Value is the value to be set.
func (t *SetTask) Value() uint64 { return t.value }

// SetValue sets the value that the next submission sets. It fails with pe.ErrInUse
// while the task is in flight, and with pe.ErrFreed.
func (t *SetTask) SetValue(value uint64) error {
	if err := t.control.MayChange(&t.Task, "value"); err != nil {
		return err
	}
	t.value = value
	return nil
}
