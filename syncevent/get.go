package syncevent

// GetPool is a pool of gets.
type GetPool struct{ pool[GetTask] }

// GetTask gets the value of an event.
type GetTask struct {
	task
	pool  *GetPool
	value uint64
}

func (t *GetTask) post() error      { t.enqueue(); return nil }
func (t *GetTask) do()              { t.value = t.ev.load() }
func (t *GetTask) succeeded()       { t.pool.done(t) }
func (t *GetTask) failed(err error) { t.pool.failed(t, err) }

// GetPool makes a pool of n gets. done and failed run on the engine's goroutine,
// inside Progress; the error is a *TaskError. It is legal in Idle. Its errors are
// those of pe.NewPool, and ErrInvalid.
func (c *Context) GetPool(n int, done func(*GetTask), failed func(*GetTask, error)) (*GetPool, error) {
	p := &GetPool{}
	err := makePool(c, &p.pool, OpGet, n, done, failed,
		func(t *GetTask) *task { return &t.task },
		func(t *GetTask) kind { t.pool = p; return t })
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Alloc takes a task out of the pool that gets the value of e, and holds e until
// the task is freed. Errors match those of pe.Pool.Alloc, and ErrInvalid,
// ErrRemote and ErrClosed.
func (p *GetPool) Alloc(e *Event) (*GetTask, error) {
	t, err := p.alloc(e)
	if err != nil {
		return nil, err
	}
	t.value = 0
	return t, nil
}

// Free puts the task back into its pool and lets go of its event. It is legal
// whenever the task is not in flight. Errors are those of pe.Pool.Free.
func (t *GetTask) Free() error {
	if t.pool == nil {
		return errNoPool
	}
	return t.pool.release(t)
}

// Value is the value that the event had, once the task has completed.
func (t *GetTask) Value() uint64 { return t.value }
