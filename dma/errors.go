package dma

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/internal/gid"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/verbs"
)

// Errors of this package, matched with errors.Is. Errors of buffers, memory maps,
// the engine and the device come through wrapped, and match those of their own
// packages.
var (
	ErrInvalid      = errors.New("invalid argument")
	ErrRange        = errors.New("out of range")
	ErrNoData       = errors.New("source buffer holds no data")
	ErrOverlap      = errors.New("memory overlaps")
	ErrNotSupported = errors.New("not supported by the device")
	ErrGID          = gid.ErrNone
	ErrDevice       = errors.New("device failed")

	// What a failed task's status means; a *TaskError matches one of them.
	ErrFlushed    = pe.ErrFlushed
	ErrProtection = errors.New("memory not accessible")
	ErrTaskFailed = errors.New("task failed")
)

// TaskError is the error of a copy that was submitted and failed. It matches the
// sentinel of its status with errors.Is.
type TaskError struct {
	Context     *Context
	Status      verbs.Status // never StatusSuccess
	VendorError uint32       // the device's own code; zero if it has none
}

// Error names the context and the status, and says what to do about it.
func (e *TaskError) Error() string {
	s := fmt.Sprintf("dma: copy of context %q on %s: %v", e.Context.set.Name, e.Context.dev.Name(), e.Status)
	if e.VendorError != 0 {
		s += fmt.Sprintf(" (vendor code %#x)", e.VendorError)
	}
	switch e.Unwrap() {
	case ErrFlushed:
		s += "; the context was stopped or had failed before: Err of the context has the reason"
	case ErrProtection:
		s += "; keep the memory maps open, and registered in the context's protection domain, until the task has completed"
	}
	return s
}

// Unwrap returns the sentinel of the status.
func (e *TaskError) Unwrap() error {
	switch e.Status {
	case verbs.StatusFlushed:
		return ErrFlushed
	case verbs.StatusLocalProtectionError, verbs.StatusLocalAccessError:
		return ErrProtection
	}
	return ErrTaskFailed
}
