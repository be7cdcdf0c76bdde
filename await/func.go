package await

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/pe"
)

// Func runs f as pe.Engine.Dispatch does, on the caller's goroutine or the engine's, waits until
// it has returned, and returns its error. f may use what belongs to the engine's goroutine, and
// the caller's variables; it should not block. If f panics on the caller's goroutine, the panic
// passes through Func. Otherwise it passes through Progress or Run of the goroutine that drives
// the engine, and Func's error matches ErrPanicked.
//
// If ctx ends before f has begun, f is never run, and the error matches ctx's cause.
// Once f has begun, Func waits for it. Func may be called from any goroutine but the
// engine's (pe.ErrReentrant), and fails with pe.ErrClosed once the engine is closed
// and with ErrInvalid without an engine or a function.
func Func(ctx context.Context, e *pe.Engine, f func() error) error {
	if e == nil || f == nil {
		return fmt.Errorf("await: run a function: %w: the engine or the function is nil", ErrInvalid)
	}
	if err := e.Friends(friend.Package{}).MayBlock("wait for a function"); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ended(ctx, "run a function")
	}
	functions := &sparesOf(e).functions
	c := functions.Get().(*function)
	c.f, c.result = f, errPanicked
	c.begun.Store(false)
	if err := e.Dispatch(c.run); err != nil {
		return fmt.Errorf("await: run a function: %w", err)
	}
	if _, ok := wait(ctx, e, c.over); !ok {
		if c.begun.CompareAndSwap(false, true) {
			return ended(ctx, "run a function") // the engine may still have c
		}
		<-c.over
	}
	err := c.result
	c.f, c.result = nil, nil
	functions.Put(c)
	return err
}

// function is a call of Func, which is used again.
type function struct {
	f      func() error
	run    func()      // runOnce
	begun  atomic.Bool // or never to be begun
	result error
	over   chan struct{} // has room for one
}

func newFunction() any {
	c := &function{over: make(chan struct{}, 1)}
	c.run = c.runOnce
	return c
}

func (c *function) runOnce() {
	if c.begun.CompareAndSwap(false, true) {
		defer func() { c.over <- struct{}{} }() // even after a panic
		c.result = c.f()
	}
}
