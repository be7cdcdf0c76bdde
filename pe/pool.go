package pe

import (
	"fmt"
	"strconv"

	"github.com/verbena-rdma/verbena/internal/fifo"
)

// Pool holds a fixed number of tasks of one kind. They are made in advance, in chunks: the
// first chunk with the pool, and another when all of those made so far are in use. A task that
// was made is kept. T is a struct that embeds a Task. A pool belongs to the goroutine that
// drives the engine.
type Pool[T any] struct {
	pool
	n         int
	made      int
	chunks    [][]T
	free      []*T // last in, first out: the next task is the one used last, still in the caches
	taskOf    func(*T) *Task
	init      func(*T)
	drop      func(*T)
	exhausted error // the one of an exhausted pool, made in advance
}

// poolChunk is how many tasks are made at a time.
const poolChunk = 1024

// exhaustedError is the error of a pool with no task left. It holds the pool, so that a Waiter
// can wait for it.
type exhaustedError struct {
	pool *pool
	n    int // tasks of the pool
}

func (e *exhaustedError) Error() string {
	return fmt.Sprintf("pe: cannot allocate: %s is %v: all %d tasks are allocated; free one, or make the pool larger", e.pool.object(), ErrExhausted, e.n)
}

func (e *exhaustedError) Is(target error) bool { return target == ErrExhausted }

// pool is the part of a pool that does not depend on the kind of task.
type pool struct {
	control       *Control
	core          *Core // of control
	name          string
	allowStarting bool // AllowStarting
	available     func() int
	reclaim       func()

	waiters   fifo.List[*Waiter]
	scheduled bool // the engine is to call the waiters
}

func (p *pool) object() string { return "pool " + strconv.Quote(p.name) + " of " + p.core.object() }

// String names the pool and its context.
func (p *Pool[T]) String() string { return p.object() }

// legal reports whether tasks can be allocated and submitted in the present state.
func (p *pool) legal() bool { return p.legalIn(State(p.core.state.Load())) }

func (p *pool) legalIn(s State) bool { return s == Running || s == Starting && p.allowStarting }

// legalStates are the states in which tasks can be allocated and submitted.
func (p *pool) legalStates() []State {
	if p.allowStarting {
		return []State{Starting, Running}
	}
	return []State{Running}
}

// MaxTasks is the largest number of tasks in one pool. Adapters take fewer at a time.
const MaxTasks = 1 << 24

// NewPool makes a pool of n tasks for a context that is Idle. The name appears in errors.
// taskOf returns the Task embedded in a T. init prepares each T once, when it is made: the first
// 1,024 in NewPool, others in the call of Alloc that needs them. drop is called, on the
// engine's goroutine, for a task that Close takes back because its user has not freed it: it
// releases what the task holds, such as buffers. init and drop may be nil.
//
// It fails with a *StateError, ErrClosed, or ErrInvalid when n is not 1 to MaxTasks or taskOf
// does not return a Task of the T it was given.
func NewPool[T any](ctl *Control, name string, n int, taskOf func(*T) *Task, init, drop func(*T)) (*Pool[T], error) {
	return newPool(ctl, name, n, taskOf, init, drop, Idle)
}

// AddPool is NewPool for a context that is Idle, Starting or Running. The context's backend makes
// room for the tasks, or has them wait for it.
func AddPool[T any](ctl *Control, name string, n int, taskOf func(*T) *Task, init, drop func(*T)) (*Pool[T], error) {
	return newPool(ctl, name, n, taskOf, init, drop, Idle, Starting, Running)
}

func newPool[T any](ctl *Control, name string, n int, taskOf func(*T) *Task, init, drop func(*T), legal ...State) (*Pool[T], error) {
	if ctl == nil || taskOf == nil {
		return nil, fmt.Errorf("pe: cannot make pool %q: the Control or the function taskOf is nil: %w", name, ErrInvalid)
	}
	c := &ctl.core
	switch {
	case n < 1 || n > MaxTasks:
		return nil, fmt.Errorf("pe: cannot make pool %q of %s with %d tasks: %w; give it 1 to %d", name, c.object(), n, ErrInvalid, MaxTasks)
	case c.closed:
		return nil, fmt.Errorf("pe: cannot make pool %q of %s: %w", name, c.object(), ErrClosed)
	}
	if err := c.require("make pool "+strconv.Quote(name), legal...); err != nil {
		return nil, err
	}
	p := &Pool[T]{
		pool:   pool{control: ctl, core: c, name: name},
		n:      n,
		taskOf: taskOf,
		init:   init,
		drop:   drop,
	}
	p.available, p.reclaim = p.Available, p.reclaimAll
	p.exhausted = &exhaustedError{&p.pool, n}
	if err := p.makeTasks(); err != nil {
		return nil, err
	}
	c.pools = append(c.pools, &p.pool)
	return p, nil
}

// makeTasks makes the next chunk of tasks. None of those made so far is free.
func (p *Pool[T]) makeTasks() error {
	chunk := make([]T, min(poolChunk, p.n-p.made))
	free := make([]*T, 0, p.made+len(chunk)) // so that Free never allocates
	for i := len(chunk) - 1; i >= 0; i-- {
		item := &chunk[i]
		if p.init != nil {
			p.init(item)
		}
		t := p.taskOf(item)
		if t == nil || t.pool != nil {
			return fmt.Errorf("pe: cannot make %s: taskOf must return the Task that is embedded in its argument: %w", p.object(), ErrInvalid)
		}
		t.pool, t.self = &p.pool, t
		free = append(free, item)
	}
	p.chunks, p.made, p.free = append(p.chunks, chunk), p.made+len(chunk), free
	return nil
}

// AllowStarting lets tasks of the pool be allocated and submitted in Starting too. Use it for
// tasks that need no peer, such as receives. The implementer of the context calls it; the
// backend must take the tasks in that state.
func (p *Pool[T]) AllowStarting() { p.allowStarting = true }

// Alloc takes a task out of the pool. It fails if the context is not Running, or Starting
// where AllowStarting was called (*StateError), or if all tasks are allocated (ErrExhausted).
// In programs built with the race detector it also fails while another goroutine drives the
// engine (ErrBusy); other programs do not check that.
func (p *Pool[T]) Alloc() (*T, error) {
	if checksGoroutine && p.core.drivenElsewhere() {
		return nil, errDrivenElsewhere("allocate from " + p.object())
	}
	if !p.legal() {
		return nil, p.core.require("allocate from pool "+strconv.Quote(p.name), p.legalStates()...)
	}
	if len(p.free) == 0 {
		if p.made == p.n {
			return nil, p.exhausted
		}
		if err := p.makeTasks(); err != nil {
			return nil, err
		}
	}
	last := len(p.free) - 1
	item := p.free[last]
	p.free = p.free[:last]
	p.taskOf(item).life = taskHeld
	p.core.allocated++
	return item, nil
}

// Free puts a task back into the pool, in Running and Stopping, also inside its callback. It
// fails, and changes nothing, if the task is in flight (ErrInUse), not allocated (ErrFreed,
// also for a task that Close has taken back) or of another pool (ErrInvalid). Freeing the last
// task of a context that is Stopping can make the context Idle.
func (p *Pool[T]) Free(item *T) error {
	if checksGoroutine && p.core.drivenElsewhere() {
		return errDrivenElsewhere("free a task of " + p.object())
	}
	if item == nil {
		return fmt.Errorf("pe: cannot free a task of %s: the task is nil: %w", p.object(), ErrInvalid)
	}
	t := p.taskOf(item)
	if t.life != taskHeld || t.self != t {
		return t.unusableError(p.control, "free")
	}
	if t.pool != &p.pool {
		return fmt.Errorf("pe: cannot free: the task belongs to %s, not to %s: %w", t.pool.object(), p.object(), ErrInvalid)
	}
	p.putBack(item, t)
	if p.waiters.Len() > 0 {
		p.schedule()
	}
	p.core.stopIfDone()
	if p.core.State() == Stopping {
		p.core.advance()
	}
	return nil
}

func (p *Pool[T]) putBack(item *T, t *Task) {
	t.life = taskFree
	t.userData = nil
	p.free = append(p.free, item)
	p.core.allocated--
}

// reclaimAll takes back the tasks that the user has not freed.
func (p *Pool[T]) reclaimAll() {
	for _, chunk := range p.chunks {
		for i := range chunk {
			if len(p.free) == p.made {
				return
			}
			item := &chunk[i]
			t := p.taskOf(item)
			if t.life != taskHeld {
				continue
			}
			p.putBack(item, t)
			if p.drop != nil {
				p.drop(item)
			}
		}
	}
}

// Cap is the number of tasks that the pool was made with.
func (p *Pool[T]) Cap() int { return p.n }

// Available is the number of tasks that can be allocated now.
func (p *Pool[T]) Available() int { return p.n - p.made + len(p.free) }
