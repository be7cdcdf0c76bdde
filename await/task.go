package await

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/pe"
)

// Task allocates a task, submits it, waits until it has completed, and frees it. It
// returns nil if the task has succeeded, and otherwise its error. The pool of the
// task must have been made with pe.TaskDone and pe.TaskFailed; it may serve tasks with
// callbacks too. The context of the task must be on the engine (ErrInvalid).
//
// alloc returns the task to be submitted. collect, which may be nil, is called when
// the task has succeeded, before it is freed, to take results out of it; Task returns
// its error. Both run as callbacks of the engine while the caller waits, on its goroutine or
// another (pe.Engine.Dispatch), so that they may use the caller's variables. They should not
// block.
//
// If alloc fails because its pool is exhausted (pe.ErrExhausted), the call waits until a task
// of the pool is freed, and calls alloc again; several callers are served in order. Since an
// allocation that fails has freed the buffers it was given, alloc has to make them each time.
// An inventory of buffers that is exhausted (bufinv.ErrExhausted) fails the call.
//
// If ctx ends before the task was submitted, the task is never submitted, and the
// error matches ctx's cause. If ctx ends later, the error is a *Pending, the operation
// goes on, and collect is not called.
//
// If alloc or collect panics on the caller's goroutine, the panic passes through Task. Otherwise
// it passes through Progress or Run of the goroutine that drives the engine, and the error matches
// ErrPanicked. If the context
// is stopped, the error is that of a task that was flushed, or of an allocation in the
// wrong state. Task may be called from any goroutine but the engine's
// (pe.ErrReentrant), and fails with pe.ErrClosed once the engine is closed. If no
// goroutine drives the engine, only ctx ends the wait.
func Task[T pe.Submittable](ctx context.Context, e *pe.Engine, alloc func() (T, error), collect func(T) error) error {
	if e == nil || alloc == nil {
		return fmt.Errorf("await: run a task: %w: the engine or the function alloc is nil", ErrInvalid)
	}
	if err := mayWait(ctx, e); err != nil {
		return err
	}
	c := newCall(alloc, collect)
	err, _ := c.run(ctx, e)
	return err
}

// Post is Task without the wait: it allocates a task, submits it, and frees it when it has completed.
// The Pending says when that is, and with what outcome; it has the errors of alloc and of Submit too.
// Post itself fails with ErrInvalid without an engine or alloc, and with pe.ErrClosed.
//
// Posts of one goroutine are submitted in their order, as long as their pools are not exhausted: a
// post that waits for a task does not hold up the next one, which may have another pool. alloc may run
// after Post has returned. Post may be called from any goroutine.
//
// A task may wait for the end of the engine's pass, as with pe.Aggregate. Closing its connection in
// that pass ends it with ErrFlushed; wait for the Pending, or call Flush of the context before.
func Post[T pe.Submittable](e *pe.Engine, alloc func() (T, error)) (*Pending, error) {
	if e == nil || alloc == nil {
		return nil, fmt.Errorf("await: post a task: %w: the engine or the function alloc is nil", ErrInvalid)
	}
	c := &call[T]{ctx: context.Background(), pending: Pending{engine: e, done: make(chan struct{})}}
	c.init(alloc, nil)
	c.over = nil
	if err := e.Dispatch(c.attempt); err != nil {
		return nil, fmt.Errorf("await: post a task: %w", err)
	}
	return &c.pending, nil
}

// mayWait fails where a call must not wait, or need not begin.
func mayWait(ctx context.Context, e *pe.Engine) error {
	if err := e.Friends(friend.Package{}).MayBlock("wait for a task"); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ended(ctx, "run a task")
	}
	return nil
}

// call is one call of Task or Post. All methods but run and abandon run as callbacks of the engine.
type call[T pe.Submittable] struct {
	ctx     context.Context
	alloc   func() (T, error)
	collect func(T) error
	attempt func()         // begin
	finish  func(T, error) // completed
	waiter  *pe.Waiter     // made when it is needed
	state   atomic.Int32
	over    chan struct{} // has room for one: the caller's wait is over; nil: the caller does not wait
	pending Pending       // its channel is made when the caller returns before the end, or does not wait
}

func newCall[T pe.Submittable](alloc func() (T, error), collect func(T) error) *call[T] {
	c := &call[T]{}
	c.init(alloc, collect)
	return c
}

// init makes what a call needs once, however often it runs.
func (c *call[T]) init(alloc func() (T, error), collect func(T) error) {
	c.alloc, c.collect = alloc, collect
	c.attempt, c.finish = c.begin, c.completed
	c.over = make(chan struct{}, 1)
}

// run runs the task. If it reports that the call is over, the engine's goroutine holds no reference
// to it, and it can run again.
func (c *call[T]) run(ctx context.Context, e *pe.Engine) (err error, over bool) {
	c.ctx = ctx
	c.state.Store(queued)
	c.pending = Pending{engine: e}
	if err := e.Dispatch(c.attempt); err != nil {
		return fmt.Errorf("await: run a task: %w", err), true
	}
	if _, ok := wait(ctx, e, c.over); !ok {
		return c.abandon(ctx, e)
	}
	return c.pending.err, true
}

// The states of a call. It leaves each of the first three with one compare-and-swap,
// and whichever goroutine does that decides how the caller's wait ends.
const (
	queued int32 = iota
	allocating
	submitted
	cancelled // ctx ended while alloc runs; the caller waits for alloc to return
	settled   // the caller gets the outcome
	abandoned // the caller has returned
)

// begin submits the task, if it can.
func (c *call[T]) begin() {
	if !c.state.CompareAndSwap(queued, allocating) {
		return
	}
	err, going := errPanicked, false
	defer func() {
		if !going {
			_ = c.settle(allocating) || c.settle(submitted)
			c.end(err)
		}
	}()
	var t, none T
	switch t, err = c.alloc(); {
	case err != nil:
		going = c.wait(err)
		return
	case t == none:
		err = fmt.Errorf("await: run a task: %w: alloc returned neither a task nor an error", ErrInvalid)
		return
	case t.Engine() != c.pending.engine: // freeing it belongs to another goroutine
		err = fmt.Errorf("await: run a task: %w: its context is not connected to this engine; the task remains allocated", ErrInvalid)
		return
	case c.ctx.Err() != nil: // if this is the caller's goroutine, nothing else has noticed
		err = errors.Join(ended(c.ctx, "run a task"), t.Free())
		return
	case !c.state.CompareAndSwap(allocating, submitted):
		err = t.Free() // cancelled
		return
	}
	if !t.InFlight() { // if it is, Submit fails, and the callback is another's
		pe.Then(t, c.finish)
	}
	if err = t.Submit(together...); err != nil {
		err = errors.Join(err, t.Free())
		return
	}
	going = true
}

// together makes a task wait for those of other callers. The engine runs what Dispatch queues
// before it calls the contexts, which then post all of them. (It is a slice, since a flag would be
// allocated for each call through a type parameter.)
var together = []pe.SubmitFlags{pe.Aggregate}

// wait calls begin again when the pool has a task.
func (c *call[T]) wait(err error) bool {
	if !errors.Is(err, pe.ErrExhausted) {
		return false
	}
	if c.waiter == nil {
		c.waiter = pe.NewWaiter(c.attempt)
	}
	if !c.waiter.Wait(err) {
		return false
	}
	if !c.state.CompareAndSwap(allocating, queued) {
		c.waiter.Leave() // cancelled
		return false
	}
	return true
}

// leave cancels wait.
func (c *call[T]) leave() {
	if c.waiter != nil {
		c.waiter.Leave()
	}
}

// completed is the callback of the task.
func (c *call[T]) completed(t T, err error) {
	pe.Then(t, nil)
	wanted := c.settle(submitted)
	defer func() {
		if e := t.Free(); err == nil {
			err = e
		}
		c.end(err)
	}()
	if err == nil && wanted && c.collect != nil {
		err = errPanicked
		err = c.collect(t)
	}
}

// settle decides that the caller gets the outcome, if it still waits.
func (c *call[T]) settle(from int32) bool { return c.state.CompareAndSwap(from, settled) }

// end publishes the outcome of the task.
func (c *call[T]) end(err error) {
	c.pending.err = err
	if c.over == nil || c.state.Load() == abandoned {
		close(c.pending.done)
		return
	}
	c.over <- struct{}{}
}

// abandon ends the caller's wait, if nothing else has.
func (c *call[T]) abandon(ctx context.Context, e *pe.Engine) (err error, over bool) {
	c.pending.cause, c.pending.done = context.Cause(ctx), make(chan struct{})
	for {
		switch {
		case c.state.CompareAndSwap(queued, abandoned):
			_ = e.Do(c.leave) // a closed engine has no waiters
			return ended(ctx, "run a task"), false
		case c.state.CompareAndSwap(submitted, abandoned):
			return &c.pending, false
		case c.state.CompareAndSwap(allocating, cancelled):
			<-c.over
			return ended(ctx, "run a task"), true
		case c.state.Load() == settled:
			<-c.over
			return c.pending.err, true
		}
	}
}
