package rdma

import (
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/pe"
)

// pool is what the pools of all kinds of task have in common.
type pool[T any] struct {
	tasks  *pe.Pool[T]
	done   func(*T)
	failed func(*T, error)
}

// Cap is the number of tasks that the pool was made with.
func (p *pool[T]) Cap() int { return p.tasks.Cap() }

// Available is the number of tasks that can be allocated now.
func (p *pool[T]) Available() int { return p.tasks.Available() }

func (p *pool[T]) free(t *T) error { return p.tasks.Free(t) }

func makePool[T any](c *Context, p *pool[T], op Operation, n int, done func(*T), failed func(*T, error),
	taskOf func(*T) *pe.Task, init, drop func(*T),
) error {
	if done == nil || failed == nil {
		return fmt.Errorf("rdma: make a pool of %vs: %w: it needs a function for tasks that succeed and one for those that fail", op, ErrInvalid)
	}
	if !c.set.caps.Supports(op) {
		return fmt.Errorf("rdma: make a pool of %vs: %w by %s", op, ErrNotSupported, c.dev.Name())
	}
	tasks, err := pe.NewPool(c.control, op.String(), n, taskOf, init, drop)
	if err != nil {
		return err
	}
	*p = pool[T]{tasks, done, failed}
	return nil
}

// makeRequests is makePool for tasks that go to send queues.
func makeRequests[T any](c *Context, p *pool[T], op Operation, n int, done func(*T), failed func(*T, error),
	of func(*T) *request, init func(*T) finisher,
) error {
	return makePool(c, p, op, n, done, failed,
		func(t *T) *pe.Task { return &of(t).Task },
		func(t *T) { of(t).register(c, op, init(t)) },
		func(t *T) { _ = of(t).drop() })
}

// allocRequest takes a task out of a pool and gives it its buffers.
func allocRequest[T any](p *pool[T], of func(*T) *request, conn *Connection, local, remote *bufinv.Buf) (*T, error) {
	t, err := p.tasks.Alloc()
	if err != nil {
		freeAll(local, remote)
		return nil, err
	}
	r := of(t)
	if err := r.give(conn, local, remote); err != nil {
		freeAll(local, remote)
		_ = p.tasks.Free(t) // it was taken just now
		return nil, fmt.Errorf("rdma: allocate a %v: %w", r.op, err)
	}
	return t, nil
}

// freeRequest puts a task back and drops its buffers.
func freeRequest[T any](p *pool[T], of func(*T) *request, t *T) error {
	if err := p.tasks.Free(t); err != nil {
		return err
	}
	return of(t).drop()
}
