package await

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/pe"
)

// Task has a task allocated, submits it, waits until it has completed, and frees
// it. It returns nil if it has succeeded, and else its error. The task's pool is to
// be made with pe.Done and pe.Failed; it may be used with callbacks too. Its context
// is to be on the engine (ErrInvalid).
//
// alloc returns the task to be submitted. collect, which may be nil, is called when
// the task has succeeded, before it is freed: to take results out of it. What it
// returns is returned. Both run on the engine's goroutine while the caller waits,
// so that they may use the caller's variables; they should not block.
//
// If alloc fails because its pool is exhausted (pe.ErrExhausted), the call waits,
// first come, first served, until a task of the pool is freed, by whomever, and
// then alloc is called again. As allocation frees the buffers that it was given
// even if it fails, alloc has to make them each time. If buffers are what has run
// out, the call fails.
//
// If ctx ends before the task was submitted, it never will be, and the error
// matches ctx's cause. If it ends later, the error is a *Pending too: the operation
// goes on. collect is called only if Task returns what it returns.
//
// If alloc or collect panics, so does whoever drives the engine, and the error
// matches ErrPanicked. If the context is stopped, the error is that of a task that
// was flushed, or of an allocation in the wrong state. Task may be called from any
// goroutine but the engine's (pe.ErrReentrant), and fails with pe.ErrClosed once the
// engine is closed. If nobody drives the engine, ctx is what ends the wait.
func Task[T pe.Submittable](ctx context.Context, e *pe.Engine, alloc func() (T, error), collect func(T) error) error {
	if e == nil || alloc == nil {
		return fmt.Errorf("await: run a task: %w: it needs an engine and a function that allocates the task", ErrInvalid)
	}
	if err := e.MayBlock("wait for a task"); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ended(ctx, "run a task")
	}
	c := &call[T]{alloc: alloc, collect: collect}
	c.out.engine, c.out.done = e, make(chan struct{})
	c.attempt = c.begin
	if err := e.Do(c.attempt); err != nil {
		return fmt.Errorf("await: run a task: %w", err)
	}
	select {
	case <-c.out.done:
		return c.out.err
	case <-ctx.Done():
		return c.abandon(ctx, e)
	}
}

// call is one call of Task. All but abandon happens on the engine's goroutine.
type call[T pe.Submittable] struct {
	alloc   func() (T, error)
	collect func(T) error
	attempt func()     // begin
	waiter  *pe.Waiter // made when it is needed
	state   atomic.Int32
	out     Pending
}

// The states of a call. Who takes it out of one of the first three decides how the
// caller's wait ends.
const (
	queued int32 = iota
	allocating
	submitted
	recalled  // given up while its function runs, for which the caller waits
	settled   // the caller waits for the outcome
	abandoned // it does not
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
		err = fmt.Errorf("await: run a task: %w: the function that allocates it returned none, and no error", ErrInvalid)
		return
	case t.Engine() != c.out.engine: // where it may not even be freed
		err = fmt.Errorf("await: run a task: %w: its pool is of a context that is not on the engine, and it was left allocated", ErrInvalid)
		return
	case !c.state.CompareAndSwap(allocating, submitted):
		err = t.Free() // recalled
		return
	}
	if err = pe.Submit(t, c.completed); err != nil {
		err = errors.Join(err, t.Free())
		return
	}
	going = true
}

// wait has begin called again when the pool has a task.
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
		c.waiter.Leave() // recalled
		return false
	}
	return true
}

// leave takes back wait.
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

// settle decides that the caller gets the outcome, if it still waits for it.
func (c *call[T]) settle(from int32) bool { return c.state.CompareAndSwap(from, settled) }

// end publishes the outcome.
func (c *call[T]) end(err error) {
	c.out.err = err
	close(c.out.done)
}

// abandon ends the caller's wait, if nothing else has.
func (c *call[T]) abandon(ctx context.Context, e *pe.Engine) error {
	c.out.cause = context.Cause(ctx)
	for {
		switch {
		case c.state.CompareAndSwap(queued, abandoned):
			_ = e.Do(c.leave) // on an engine that is closed nothing waits
			return ended(ctx, "run a task")
		case c.state.CompareAndSwap(submitted, abandoned):
			return &c.out
		case c.state.CompareAndSwap(allocating, recalled):
			<-c.out.done
			return ended(ctx, "run a task")
		case c.state.Load() == settled:
			<-c.out.done
			return c.out.err
		}
	}
}
