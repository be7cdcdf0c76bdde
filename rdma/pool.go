package rdma

import (
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/pe/backend"
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
	newPool := backend.NewPool[T]
	if op == 0 {
		newPool = backend.AddPool[T] // what tasks need is made with the pool, or they wait for it
	}
	tasks, err := newPool(c.control, op.String(), n, taskOf, init, drop)
	if err != nil {
		return err
	}
	backend.AllowStarting(tasks) // a receive needs no connection, and other tasks need only their own
	*p = pool[T]{tasks, done, failed}
	return nil
}

// freeAll drops the buffers of a failed allocation.
func freeAll(bufs ...*bufinv.Buf) {
	for _, b := range bufs {
		_ = b.Free() // the error at hand says more
	}
}
