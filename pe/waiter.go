package pe

import (
	"errors"

	"github.com/verbena-rdma/verbena/internal/fifo"
)

// Waiter is a place in the queue for the tasks of a pool, for programs that wait instead of
// handling ErrExhausted: the example of rdma.Pool shows one. It belongs to the goroutine that drives the engine. It waits for one
// pool at a time, the last one given to Wait, and can be used again.
type Waiter struct {
	retry func()
	pool  *pool // nil: not waiting
	node  fifo.Node[*Waiter]
}

// NewWaiter makes a waiter that calls retry when a task may be allocated.
func NewWaiter(retry func()) *Waiter {
	w := &Waiter{retry: retry}
	w.node.Value = w
	return w
}

// Wait queues for the pool whose Alloc has just failed with err. The waiter's function is
// called once, inside Progress and in no other callback: when the waiter is the first in the
// queue and a task can be allocated, or when the context is no longer Running. It should call
// Alloc again. If a callback takes the task first without waiting, the waiter goes on waiting.
//
// Wait returns false, and does nothing, if err is not that of an exhausted pool
// (ErrExhausted). It allocates nothing.
func (w *Waiter) Wait(err error) bool {
	e, ok := errors.AsType[*exhaustedError](err)
	if !ok || w.retry == nil || !e.pool.legal() {
		return false
	}
	if w.pool != e.pool {
		w.leave()
		e.pool.waiters.Push(&w.node)
		w.pool = e.pool
		w.pool.schedule() // if a task was freed meanwhile
	}
	return true
}

// Leave gives up the waiter's place; its function is not called. It does nothing if the waiter
// is not waiting.
func (w *Waiter) Leave() {
	if w.pool != nil {
		core := w.pool.core
		w.leave()
		core.stopIfDone()
	}
}

func (w *Waiter) leave() {
	if w.pool != nil {
		w.pool.waiters.Remove(&w.node)
		w.pool = nil
	}
}

// waiterReady reports whether the first waiter can be called.
func (p *pool) waiterReady() bool {
	return p.waiters.Len() > 0 && (p.available() > 0 || !p.legal())
}

// schedule queues the pool for the engine to call its waiters, if the first can be called.
func (p *pool) schedule() {
	e := p.core.engine.Load()
	if p.scheduled || e == nil || !p.waiterReady() {
		return
	}
	p.scheduled = true
	e.pools.Push(p)
	if !e.driven() {
		e.wake()
	}
}

// callWaiters calls, in order and once each, the waiters that can be called.
func (p *pool) callWaiters() int {
	p.scheduled = false
	defer p.schedule() // for the rest, also after a panic
	n := 0
	for range p.waiters.Len() {
		if !p.waiterReady() {
			break
		}
		w := p.waiters.Front().Value
		w.leave()
		n++
		p.core.engine.Load().call(waiterRegion, w.retry)
		p.core.engine.Load().yield()
	}
	p.core.stopIfDone()
	return n
}
