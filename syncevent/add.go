package syncevent

// AddPool is a pool of additions.
type AddPool struct{ pool[AddTask] }

// AddTask adds to the value of an event, in one step.
type AddTask struct {
	task
	pool  *AddPool
	value uint64
	old   uint64
}

func (t *AddTask) post() error      { t.enqueue(); return nil }
func (t *AddTask) do()              { t.old = t.ev.add(t.value) }
func (t *AddTask) succeeded()       { t.pool.done(t) }
func (t *AddTask) failed(err error) { t.pool.failed(t, err) }

// AddPool makes a pool of n additions, as GetPool does of gets.
func (c *Context) AddPool(n int, done func(*AddTask), failed func(*AddTask, error)) (*AddPool, error) {
	p := &AddPool{}
	err := makePool(c, &p.pool, OpAdd, n, done, failed,
		func(t *AddTask) *task { return &t.task },
		func(t *AddTask) kind { t.pool = p; return t })
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Alloc takes a task out of the pool that adds value, modulo 2^64, to that of e,
// and holds e until the task is freed. Errors match those of pe.Pool.Alloc, and
// ErrInvalid, ErrRemote, ErrPublisher and ErrClosed.
func (p *AddPool) Alloc(e *Event, value uint64) (*AddTask, error) {
	t, err := p.alloc(e)
	if err != nil {
		return nil, err
	}
	t.value, t.old = value, 0
	return t, nil
}

// Free puts the task back into its pool and lets go of its event. It is legal
// whenever the task is not in flight. Errors are those of pe.Pool.Free.
func (t *AddTask) Free() error {
	if t.pool == nil {
		return errNoPool
	}
	return t.pool.release(t)
}

// Old is the value that the event had before, once the task has completed.
func (t *AddTask) Old() uint64 { return t.old }

// Value is the value to be added.
func (t *AddTask) Value() uint64 { return t.value }

// SetValue sets the value that the next submission adds. It fails with pe.ErrInUse
// while the task is in flight, and with pe.ErrFreed.
func (t *AddTask) SetValue(value uint64) error {
	if err := t.control.MayChange(&t.Task, "value"); err != nil {
		return err
	}
	t.value = value
	return nil
}
