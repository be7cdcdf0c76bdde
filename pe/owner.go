package pe

import (
	"fmt"
	"reflect"
	"runtime"
)

// acquire makes the calling goroutine the one that drives the engine.
func (e *Engine) acquire(op string) error {
	if !e.driven.CompareAndSwap(false, true) {
		return e.intruder(op)
	}
	if e.closed.Load() {
		e.driven.Store(false)
		return fmt.Errorf("pe: cannot %s: the engine is closed: %w", op, ErrClosed)
	}
	return nil
}

func (e *Engine) release() { e.driven.Store(false) }

// intruder is the error of a call that needs the engine while it is driven.
func (e *Engine) intruder(op string) error {
	if onDriver() {
		return fmt.Errorf("pe: cannot %s: %w; return from the callback, the engine goes on by itself", op, ErrReentrant)
	}
	return fmt.Errorf("pe: cannot %s: %w: another goroutine drives the engine; hand it a function with Engine.Do", op, ErrBusy)
}

// owned fails if another goroutine is driving the engine right now.
func (e *Engine) owned(op string) error {
	if e.driven.Load() && !onDriver() {
		return fmt.Errorf("pe: cannot %s: %w: another goroutine drives the engine; do it in a function given to Engine.Do", op, ErrBusy)
	}
	return nil
}

// MayBlock fails with ErrReentrant in a callback: one that waited for the engine
// would wait for itself. It is for implementers of calls that wait for what the
// engine does, which any goroutine may make. The operation is for the error.
func (e *Engine) MayBlock(op string) error {
	if e.driven.Load() && onDriver() {
		return fmt.Errorf("pe: cannot %s: %w; it would wait for itself: do it in another goroutine, or with callbacks", op, ErrReentrant)
	}
	return nil
}

// passEntry is where the code of Engine.pass begins.
var passEntry = reflect.ValueOf((*Engine).pass).Pointer()

// onDriver reports whether the calling goroutine is inside a pass of an engine.
// It looks at the stack, which is slow, so that Progress need not leave a mark
// for calls that are rare or wrong. A callback of one engine that touches
// another engine is taken for a callback of that one.
func onDriver() bool {
	var pcs [64]uintptr
	for skip := 2; ; skip += len(pcs) {
		n := runtime.Callers(skip, pcs[:])
		for _, pc := range pcs[:n] {
			// Pass is never inlined, and what is inlined into it has its entry.
			if f := runtime.FuncForPC(pc - 1); f != nil && f.Entry() == passEntry {
				return true
			}
		}
		if n < len(pcs) {
			return false
		}
	}
}
