package pe

import (
	"fmt"
	"strconv"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/friend"
)

// Pool holds a fixed number of tasks of one kind. They are made in advance, in chunks: the
// first chunk with the pool, and another when all of those made so far are in use. A task that
// was made is kept. T is a struct that embeds a Task. A pool belongs to the goroutine that
// drives the engine. backend.NewPool makes pools.
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
	core          *Core
	name          string
	allowStarting bool
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

// poolForFriends has the methods of a pool that other packages of this module use.
type poolForFriends[T any] struct{ *Pool[T] }

// Friends returns the methods for packages of this module.
func (p *Pool[T]) Friends(friend.Package) poolForFriends[T] { return poolForFriends[T]{p} }

// Make is backend.NewPool, in one of the legal states.
func (s poolForFriends[T]) Make(c *Core, name string, n int, taskOf func(*T) *Task, init, drop func(*T), legal ...State) error {
	if c == nil || taskOf == nil {
		return fmt.Errorf("pe: cannot make pool %q: the Control or the function taskOf is nil: %w", name, ErrInvalid)
	}
	switch {
	case n < 1 || n > MaxTasks:
		return fmt.Errorf("pe: cannot make pool %q of %s with %d tasks: %w; give it 1 to %d", name, c.object(), n, ErrInvalid, MaxTasks)
	case c.closed:
		return fmt.Errorf("pe: cannot make pool %q of %s: %w", name, c.object(), ErrClosed)
	}
	if err := c.require("make pool "+strconv.Quote(name), legal...); err != nil {
		return err
	}
	p := s.Pool
	*p = Pool[T]{
		pool:   pool{core: c, name: name},
		n:      n,
		taskOf: taskOf,
		init:   init,
		drop:   drop,
	}
	p.available, p.reclaim = p.Available, p.reclaimAll
	p.exhausted = &exhaustedError{&p.pool, n}
	if err := p.makeTasks(); err != nil {
		return err
	}
	c.pools = append(c.pools, &p.pool)
	return nil
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

// AllowStarting is backend.AllowStarting.
func (s poolForFriends[T]) AllowStarting() { s.allowStarting = true }

// Alloc takes a task out of the pool. It fails if the context is not Running, or Starting
// where the kind of context allows it (*StateError), or if all tasks are allocated (ErrExhausted).
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
		return t.unusableError(p.core, "free")
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
