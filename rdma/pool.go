package rdma

import (
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/syncevent"
)

// pool is what the pools of all kinds of task have in common.
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

func (p *pool[T]) fillWith(c *Context, op Operation, n int, done func(*T), failed func(*T, error),
	taskOf func(*T) *pe.Task, init, drop func(*T),
) error {
	if err := c.control.Owned("make a pool of " + op.String() + "s"); err != nil {
		return err
	}
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
	tasks.AllowStarting() // a receive needs no connection, and others need only theirs
	*p = pool[T]{tasks, done, failed}
	return nil
}

// fillable is a pool of tasks of type T.
type fillable[T any] interface {
	fill(c *Context, op Operation, n int, done func(*T), failed func(*T, error)) error
}

// makePool fills a new pool, and returns it.
func makePool[P fillable[T], T any](p P, c *Context, op Operation, n int, done func(*T), failed func(*T, error)) (P, error) {
	if err := p.fill(c, op, n, done, failed); err != nil {
		var none P
		return none, err
	}
	return p, nil
}

// requestPool is a pool of tasks that go to send queues. P is *T.
type requestPool[T any, P requestTask[T]] struct{ pool[T] }

// requestTask is a pointer to a task that embeds a request.
type requestTask[T any] interface {
	*T
	base() *request
}

func (p *requestPool[T, P]) fill(c *Context, op Operation, n int, done func(*T), failed func(*T, error)) error {
	return p.fillWith(c, op, n, done, failed,
		func(t *T) *pe.Task { return &P(t).base().Task },
		func(t *T) { P(t).base().register(c, op, p, P(t)) },
		func(t *T) { _ = P(t).base().drop() })
}

// alloc takes a task out of the pool and gives it its buffers.
func (p *requestPool[T, P]) alloc(to Responder, local, remote *bufinv.Buf) (*T, error) {
	t, err := p.tasks.Alloc()
	if err != nil {
		freeAll(local, remote)
		return nil, err
	}
	return p.giveTo(t, to, local, remote)
}

// giveTo gives a task that was taken just now its buffers.
func (p *requestPool[T, P]) giveTo(t *T, to Responder, local, remote *bufinv.Buf) (*T, error) {
	if err := P(t).base().give(to, local, remote); err != nil {
		freeAll(local, remote)
		return nil, p.takeBack(t, err)
	}
	return t, nil
}

// allocEvent takes a task out of the pool and gives it its sync event.
func (p *requestPool[T, P]) allocEvent(conn *Connection, ev *syncevent.Event) (*T, error) {
	t, err := p.tasks.Alloc()
	if err != nil {
		return nil, err
	}
	if err := P(t).base().giveEvent(conn, ev); err != nil {
		return nil, p.takeBack(t, err)
	}
	return t, nil
}

// takeBack puts back a task that was allocated in vain.
func (p *requestPool[T, P]) takeBack(t *T, err error) error {
	_ = p.tasks.Free(t) // it was taken just now
	return fmt.Errorf("rdma: allocate a %v: %w", P(t).base().op, err)
}

// free implements requestOwner.
func (p *requestPool[T, P]) free(r *request) error { return p.tasks.Free(r.self.(P)) }

// completed implements requestOwner.
func (p *requestPool[T, P]) completed(r *request, err error) {
	if err != nil {
		p.failed(r.self.(P), err)
		return
	}
	p.done(r.self.(P))
}

// freeAll drops buffers that were handed over in vain.
func freeAll(bufs ...*bufinv.Buf) {
	for _, b := range bufs {
		_ = b.Free() // the error at hand says more
	}
}
