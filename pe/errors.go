package pe

import (
	"errors"

	"github.com/verbena-rdma/verbena/internal/errs"
)

// Errors of this package. Match them with errors.Is: the returned errors name the object and
// say what to do.
var (
	// ErrBadState: the call is not legal in the state that the context is in.
	// The error is a *StateError.
	ErrBadState = errors.New("illegal in this state")
	// ErrNotConnected: the context is on no engine.
	ErrNotConnected = errors.New("not connected to an engine")
	// ErrInUse: something else still uses the object.
	ErrInUse = errs.ErrInUse
	// ErrExhausted: every task of the pool is allocated.
	ErrExhausted = errs.ErrExhausted
	// ErrFreed: the task is not allocated: it was freed, or it is a copy of a task.
	ErrFreed = errs.ErrFreed
	// ErrTasksHeld: contexts cannot become Idle, because tasks were not freed.
	ErrTasksHeld = errors.New("tasks not freed")
	// ErrReentrant: the engine was driven from inside one of its own callbacks.
	ErrReentrant = errors.New("called from inside a callback of the engine")
	// ErrBusy: another goroutine is driving the engine.
	ErrBusy = errs.ErrBusy
	// ErrTimeout: a context that was to be closed did not become Idle in time.
	ErrTimeout = errs.ErrTimeout
	// ErrDraining: Run or Close is stopping all contexts, and none can be started.
	ErrDraining = errors.New("engine is draining")
	// ErrClosed: the engine or the context has been closed.
	ErrClosed = errs.ErrClosed
	// ErrInvalid: an argument has a value that can never be right.
	ErrInvalid = errs.ErrInvalid
	// ErrFlushed: the task was not carried out, because its context stopped or its connection
	// ended.
	ErrFlushed = errs.ErrFlushed
	// ErrNotSupported: this platform lacks the feature. The error is an
	// *UnsupportedError, and matches errors.ErrUnsupported too.
	ErrNotSupported = errs.ErrNotSupported
)

// UnsupportedError says which feature is missing, where, and what to use
// instead. It matches ErrNotSupported and errors.ErrUnsupported.
type UnsupportedError struct {
	Feature  string // such as "a notification descriptor"
	Platform string // as runtime.GOOS names it
	Instead  string // what to do there
}

// Error implements error.
func (e *UnsupportedError) Error() string {
	return "pe: " + e.Feature + " is not supported on " + e.Platform + ": " + e.Instead
}

// Unwrap returns ErrNotSupported.
func (e *UnsupportedError) Unwrap() error { return ErrNotSupported }
