package syncevent

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/internal/errs"
)

// Errors of this package, matched with errors.Is. Errors of buffers, memory maps,
// descriptors, the engine and the device come through wrapped.
var (
	// ErrInvalid: an argument has a value that can never be right.
	ErrInvalid = errs.ErrInvalid
	// ErrRange: memory that is not 8 bytes at a multiple of 8, or a setting outside
	// its limits.
	ErrRange = errs.ErrRange
	// ErrRemote: the Event was imported, and its value is in a peer's memory.
	ErrRemote = errs.ErrRemote
	// ErrInUse: waits are under way, or tasks hold the Event.
	ErrInUse = errs.ErrInUse
	// ErrNotHeld: an Event was released more often than held.
	ErrNotHeld = errs.ErrNotHeld
	// ErrClosed: the Event has been closed.
	ErrClosed = errs.ErrClosed
	// ErrFlushed: the context stopped before the task was done. The error is a
	// *TaskError.
	ErrFlushed = errs.ErrFlushed
	// ErrPublisher: the event's publishers do not include the caller, or this device cannot
	// combine them.
	ErrPublisher = errors.New("not allowed to change the value")
	// ErrLocal: the Event was made without a device, so peers cannot reach it.
	ErrLocal = errors.New("not open to peers")
)

// TaskError is the error of a task that was in flight when its context stopped. It matches
// ErrFlushed, and what its Cause matches.
type TaskError struct {
	Op    Operation // the task's kind
	Event *Event    // the event of the task
	Cause error     // why the context ended (pe.Core.Err); nil if the program stopped it
}

// Error names the operation, the event and the reason.
func (e *TaskError) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("syncevent: %v of %v: %v: its context has failed: %v", e.Op, e.Event, ErrFlushed, e.Cause)
	}
	return fmt.Sprintf("syncevent: %v of %v: %v: its context was stopped", e.Op, e.Event, ErrFlushed)
}

// Unwrap returns ErrFlushed, and the cause if there is one.
func (e *TaskError) Unwrap() []error {
	if e.Cause != nil {
		return []error{ErrFlushed, e.Cause}
	}
	return []error{ErrFlushed}
}
