package pe

import (
	"fmt"
	"reflect"
	"runtime"
	"sync"
)

// made fails for an engine that New did not make.
func (e *Engine) made(op string) error {
	if e == nil || e.notifier.wakeup == nil {
		return fmt.Errorf("pe: cannot %s: %w: the engine was not made by pe.New", op, ErrInvalid)
	}
	return nil
}

// acquire makes the calling goroutine the one that drives the engine.
func (e *Engine) acquire(op string) error {
	if err := e.made(op); err != nil {
		return err
	}
	if !e.driven.CompareAndSwap(false, true) {
		return e.drivenError(op)
	}
	if e.closed.Load() {
		e.driven.Store(false)
		return fmt.Errorf("pe: cannot %s: the engine is closed: %w", op, ErrClosed)
	}
	return nil
}

func (e *Engine) release() { e.driven.Store(false) }

// drivenError is the error of a call that needs the engine while it is driven.
func (e *Engine) drivenError(op string) error {
	if insidePass() {
		return fmt.Errorf("pe: cannot %s: %w; return from the callback, the engine goes on by itself", op, ErrReentrant)
	}
	return fmt.Errorf("pe: cannot %s: %w: another goroutine drives the engine; hand it a function with Engine.Do", op, ErrBusy)
}

// drivenElsewhere reports whether another goroutine is driving the engine right now.
func (e *Engine) drivenElsewhere() bool { return e.driven.Load() && !insidePass() }

// owned fails if another goroutine is driving the engine right now.
func (e *Engine) owned(op string) error {
	if e.drivenElsewhere() {
		return elsewhere(op)
	}
	return nil
}

// elsewhere is the error of a call that belongs to the goroutine that drives the engine,
// on another one.
func elsewhere(op string) error {
	return fmt.Errorf("pe: cannot %s: %w: another goroutine drives the engine, and contexts, connections, pools and tasks belong to it; do it in a function given to Engine.Do, or with package await", op, ErrBusy)
}

// MayBlock fails with ErrReentrant in a callback: one that waited for the engine
// would wait for itself. In a callback of another engine it fails too, while this one is
// being driven: to know which engine a goroutine drives would cost Progress time, and the
// other engine would stand still meanwhile. It is for implementers of calls that wait for
// what the engine does, which any goroutine may make. The operation is for the error.
func (e *Engine) MayBlock(op string) error {
	if err := e.made(op); err != nil {
		return err
	}
	if e.driven.Load() && insidePass() {
		return fmt.Errorf("pe: cannot %s: %w; it would wait for itself: do it in another goroutine, or with callbacks", op, ErrReentrant)
	}
	return nil
}

// passEntry is where the code of Engine.pass begins, and passEnd where it ends.
var (
	passEntry = reflect.ValueOf((*Engine).pass).Pointer()
	passEnd   = sync.OnceValue(func() uintptr {
		pc := passEntry
		for f := runtime.FuncForPC(pc); f != nil && f.Entry() == passEntry; f = runtime.FuncForPC(pc) {
			pc++ // what is inlined into pass has the entry of pass
		}
		return pc
	})
)

// insidePass reports whether the calling goroutine is inside a pass of an engine. It
// looks at the stack, which is slow, but costs Progress nothing: only calls that are
// rare or wrong need it, and builds that look for races. It does not know which engine: a
// callback of one engine that uses another engine is taken for a callback of that one.
func insidePass() bool {
	var pcs [64]uintptr
	end := passEnd()
	for skip := 2; ; skip += len(pcs) {
		n := runtime.Callers(skip, pcs[:])
		for _, pc := range pcs[:n] {
			if pc > passEntry && pc <= end {
				return true
			}
		}
		if n < len(pcs) {
			return false
		}
	}
}
