package syncevent

import (
	"fmt"

	"github.com/verbena-rdma/verbena/pe"
)

// pool is what the pools of all kinds of task have in common.
type pool[T any] struct {
	tasks  *pe.Pool[T]
	of     func(*T) *task
	done   func(*T)
	failed func(*T, error)
}

// Cap is the number of tasks that the pool was made with.
func (p *pool[T]) Cap() int { return p.tasks.Cap() }

// Available is the number of tasks that can be allocated now.
func (p *pool[T]) Available() int { return p.tasks.Available() }

func makePool[T any](c *Context, p *pool[T], op Operation, n int, done func(*T), failed func(*T, error),
	of func(*T) *task, init func(*T) kind,
) error {
	if done == nil || failed == nil {
		return fmt.Errorf("syncevent: make a pool of %vs: %w: it needs a function for tasks that succeed and one for those that fail", op, ErrInvalid)
	}
	tasks, err := pe.NewPool(c.control, op.String(), n,
		func(t *T) *pe.Task { return &of(t).Task },
		func(t *T) {
			k := of(t)
			k.node.Value = k
			k.control, k.ctx, k.op, k.kind = c.control, c, op, init(t)
		},
		func(t *T) { _ = of(t).releaseEvent() })
	if err != nil {
		return err
	}
	*p = pool[T]{tasks, of, done, failed}
	return nil
}

// alloc takes a task out of the pool and gives it its event.
func (p *pool[T]) alloc(e *Event) (*T, error) {
	t, err := p.tasks.Alloc()
	if err != nil {
		return nil, err
	}
	if err := p.of(t).holdEvent(e); err != nil {
		_ = p.tasks.Free(t) // it was taken just now
		return nil, fmt.Errorf("syncevent: allocate a %v: %w", p.of(t).op, err)
	}
	return t, nil
}

// release puts a task back and lets go of its event.
func (p *pool[T]) release(t *T) error {
	if err := p.tasks.Free(t); err != nil {
		return err
	}
	return p.of(t).releaseEvent()
}
