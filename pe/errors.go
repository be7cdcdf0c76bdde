package pe

import "errors"

// Errors of this package. Match them with errors.Is: what the
// functions return names the object and says what to do.
var (
	// ErrBadState: the call is not legal in the state that the context is in.
	// The error is a *StateError.
	ErrBadState = errors.New("illegal in this state")
	// ErrNotConnected: the context is on no engine.
	ErrNotConnected = errors.New("not connected to an engine")
	// ErrInUse: something else still uses the object.
	ErrInUse = errors.New("in use")
	// ErrExhausted: every task of the pool is allocated.
	ErrExhausted = errors.New("pool exhausted")
	// ErrFreed: the task is not allocated: it was freed, or never came from a pool.
	ErrFreed = errors.New("task not allocated")
	// ErrTasksHeld: contexts cannot become Idle, because tasks were not freed.
	ErrTasksHeld = errors.New("tasks not freed")
	// ErrFlushed: the task was cut off, because its context was stopped or what it
	// ran on had failed before. Errors of tasks match it.
	ErrFlushed = errors.New("flushed")
	// ErrReentrant: the engine was driven from inside one of its own callbacks.
	ErrReentrant = errors.New("called from inside a callback of the engine")
	// ErrBusy: another goroutine is driving the engine.
	ErrBusy = errors.New("another goroutine drives the engine")
	// ErrTimeout: a context that was to be closed did not become Idle in time.
	ErrTimeout = errors.New("timed out")
	// ErrDraining: Run or Close is stopping all contexts, and none can be started.
	ErrDraining = errors.New("engine is draining")
	// ErrClosed: the engine or the context has been closed.
	ErrClosed = errors.New("closed")
	// ErrInvalid: an argument has a value that can never be right.
	ErrInvalid = errors.New("invalid argument")
	// ErrNotSupported: this platform lacks the feature. The error is an
	// *UnsupportedError.
	ErrNotSupported = errors.New("not supported")
)

// UnsupportedError says which feature is missing, where, and what to use
// instead. It matches ErrNotSupported.
type UnsupportedError struct {
	Feature  string
	Platform string // as runtime.GOOS names it
	Instead  string
}

// Error implements error.
func (e *UnsupportedError) Error() string {
	return "pe: " + e.Feature + " is not supported on " + e.Platform + ": " + e.Instead
}

// Is makes the error match ErrNotSupported.
func (e *UnsupportedError) Is(target error) bool { return target == ErrNotSupported }
