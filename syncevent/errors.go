package syncevent

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/pe"
)

// Errors of this package, matched with errors.Is. Errors of buffers, memory maps,
// descriptors, the engine and the device come through wrapped, and match those of
// their own packages.
var (
	ErrInvalid   = errors.New("invalid argument")
	ErrRange     = errors.New("out of range")
	ErrPublisher = errors.New("not allowed to change the value")
	ErrRemote    = errors.New("not possible on an imported sync event")
	ErrLocal     = errors.New("not open to peers")
	ErrInUse     = errors.New("sync event in use")
	ErrNotHeld   = errors.New("sync event not held")
	ErrClosed    = errors.New("sync event closed")
	// ErrFlushed: the context stopped before the task was done. The error is a
	// *TaskError.
	ErrFlushed = pe.ErrFlushed
)

// errNoPool is the error of freeing a task that came from no pool.
var errNoPool = fmt.Errorf("syncevent: free a task: it came from no pool: %w", ErrInvalid)

// TaskError is the error of a task that was submitted and failed: it was in
// flight when its context stopped. It matches ErrFlushed.
type TaskError struct {
	Op    Operation
	Event *Event
}

// Error names the operation, the event and the reason.
func (e *TaskError) Error() string {
	return fmt.Sprintf("syncevent: %v of %v: %v: its context was stopped", e.Op, e.Event, ErrFlushed)
}

// Unwrap returns ErrFlushed.
func (e *TaskError) Unwrap() error { return ErrFlushed }
