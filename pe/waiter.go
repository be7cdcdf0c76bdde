package pe

import "errors"

// Waiter is a place in the queue for the tasks of a pool. It is for those who
// would rather wait than handle ErrExhausted, and belongs to the goroutine that
// drives the engine. It waits for one pool at a time, the one that Wait was called
// for last, and can be used again.
type Waiter struct {
	again      func()
	pool       *pool // nil: it does not wait
	prev, next *Waiter
}

// NewWaiter makes a waiter that calls again when its turn has come.
func NewWaiter(again func()) *Waiter { return &Waiter{again: again} }

// Wait queues for the pool whose Alloc has just failed with err. The waiter's
// function is called once, inside Progress and in no other callback, when those
// before it have had their turn and a task can be allocated, or when the context
// is not Running any more; it should call Alloc again. A callback that allocates
// without waiting may come first; then the waiter goes on waiting.
//
// It returns false, and does nothing, if err is not that of an exhausted pool
// (ErrExhausted). It allocates nothing.
func (w *Waiter) Wait(err error) bool {
	e, ok := errors.AsType[*exhaustedError](err)
	if !ok || e.pool.core.State() != Running {
		return false
	}
	if w.pool != e.pool {
		w.Leave()
		e.pool.queue.push(w)
		w.pool = e.pool
		w.pool.summon() // if a task was freed meanwhile
	}
	return true
}

// Leave gives up the waiter's place; its function is not called. Where it does
// not wait, it does nothing.
func (w *Waiter) Leave() {
	if w.pool != nil {
		w.pool.queue.remove(w)
		w.pool = nil
	}
}

// waiters is a queue that one can leave.
type waiters struct {
	head, tail *Waiter
	n          int
}

func (q *waiters) push(w *Waiter) {
	if q.tail == nil {
		q.head = w
	} else {
		q.tail.next, w.prev = w, q.tail
	}
	q.tail = w
	q.n++
}

func (q *waiters) remove(w *Waiter) {
	if w.prev == nil {
		q.head = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		q.tail = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.prev, w.next = nil, nil
	q.n--
}

// turn reports whether the first of the queue can go on.
func (p *pool) turn() bool {
	return p.queue.head != nil && (p.available() > 0 || p.core.State() != Running)
}

// summon has the engine serve the queue, if there is a reason to.
func (p *pool) summon() {
	e := p.core.engine.Load()
	if p.due || e == nil || !p.turn() {
		return
	}
	p.due = true
	e.due.push(p)
	if !e.driven.Load() {
		e.wake()
	}
}

// serve calls those whose turn has come, each once.
func (p *pool) serve() int {
	p.due = false
	defer p.summon() // for the rest, also after a panic
	n := 0
	for range p.queue.n {
		if !p.turn() {
			break
		}
		w := p.queue.head
		w.Leave()
		n++
		w.again()
	}
	return n
}
