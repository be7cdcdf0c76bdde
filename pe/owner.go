package pe

import (
	"fmt"

	"github.com/verbena-rdma/verbena/internal/goroutine"
)

// acquire makes the calling goroutine drive the engine.
func (e *Engine) acquire(op string) error {
	if !e.driver.CompareAndSwap(0, uintptr(goroutine.Current())) {
		return e.drivenError(op)
	}
	if e.closed.Load() {
		e.release()
		return fmt.Errorf("pe: cannot %s: the engine is closed: %w", op, ErrClosed)
	}
	return nil
}

func (e *Engine) release() {
	e.endRegion() // of a pass that panicked
	e.driver.Store(0)
}

// driven reports whether a goroutine is driving the engine right now.
func (e *Engine) driven() bool { return e.driver.Load() != 0 }

// drivenHere reports whether the calling goroutine is driving the engine, that is, whether it
// is in a callback, or in a function that Dispatch runs.
func (e *Engine) drivenHere() bool { return e.driver.Load() == uintptr(goroutine.Current()) }

// drivenElsewhere reports whether another goroutine is driving the engine right now.
func (e *Engine) drivenElsewhere() bool {
	d := e.driver.Load()
	return d != 0 && d != uintptr(goroutine.Current())
}

// drivenError is the error of a call that needs the engine while a goroutine drives it.
func (e *Engine) drivenError(op string) error {
	if e.drivenHere() {
		return fmt.Errorf("pe: cannot %s: %w; return from the callback, and the engine continues by itself", op, ErrReentrant)
	}
	return fmt.Errorf("pe: cannot %s: %w: another goroutine is driving the engine; pass a function to Engine.Do", op, ErrBusy)
}

// owned fails if another goroutine is driving the engine right now.
func (e *Engine) owned(op string) error {
	if e.drivenElsewhere() {
		return errDrivenElsewhere(op)
	}
	return nil
}

// errDrivenElsewhere is the error of a call on another goroutine than the one that drives the engine.
func errDrivenElsewhere(op string) error {
	return fmt.Errorf("pe: cannot %s: %w: another goroutine is driving the engine, which owns its contexts, connections, pools and tasks; use Engine.Do or package await", op, ErrBusy)
}
