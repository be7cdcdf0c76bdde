package dma

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/internal/errs"
	"github.com/verbena-rdma/verbena/verbs"
)

// Errors of this package, matched with errors.Is. Errors of buffers, memory maps,
// the engine and the device come through wrapped.
var (
	// ErrInvalid: an argument has a value that can never be right.
	ErrInvalid = errs.ErrInvalid
	// ErrRange: a setting is outside its limits, or the destination has no room.
	ErrRange = errs.ErrRange
	// ErrNotSupported: the device cannot copy. It matches errors.ErrUnsupported too.
	ErrNotSupported = errs.ErrNotSupported
	// ErrGID: the port has no usable GID, or not the one asked for.
	ErrGID = errs.ErrGID
	// ErrNoData: the source buffer holds no data.
	ErrNoData = errs.ErrNoData
	// ErrDevice: the device failed, or refused what it should have taken.
	ErrDevice = errs.ErrDevice
	// ErrMemoryKept: the device has failed, and neither this program nor the kernel could
	// destroy its queue pair, so the device may still read or write the memory of a failed
	// task. Do not reuse that memory. Its memory maps cannot be closed until the device is.
	ErrMemoryKept = errs.ErrMemoryKept
	// ErrOverlap: the source and the destination, or two elements of the
	// destination, have bytes in common.
	ErrOverlap = errors.New("memory overlaps")

	// The meaning of a failed task's status; a *TaskError matches one of these.

	// ErrFlushed: the context was stopped, or had failed before.
	ErrFlushed = errs.ErrFlushed
	// ErrTaskFailed: the status has no error of its own here.
	ErrTaskFailed = errs.ErrTaskFailed
	// ErrProtection: the device may not access the memory of a buffer.
	ErrProtection = errors.New("memory not accessible")
)

// TaskError is the error of a copy that was submitted and failed. It matches the
// sentinel of its status with errors.Is, and what its Cause matches.
type TaskError struct {
	Context     *Context     // the context of the copy
	Status      verbs.Status // never StatusSuccess
	VendorError uint32       // the device's own code; zero if it has none
	// Cause is, for a flushed copy, why the context ended (pe.Core.Err); nil if the program
	// stopped it.
	Cause error
}

// Error names the context and the status, and says what to do about it.
func (e *TaskError) Error() string {
	s := "dma: copy"
	if c := e.Context; c != nil {
		s += fmt.Sprintf(" of context %q on %s", c.Name(), c.dev.Name())
	}
	s += ": " + e.Status.String()
	if e.VendorError != 0 {
		s += fmt.Sprintf(" (vendor code %#x)", e.VendorError)
	}
	switch {
	case e.Cause != nil:
		s += ": " + e.Cause.Error()
	case e.sentinel() == ErrFlushed:
		s += "; the program stopped the context"
	case e.sentinel() == ErrProtection:
		s += "; keep the memory maps open, and registered in the context's protection domain, until the task has completed"
	}
	return s
}

// Unwrap returns the sentinel of the status, and the cause if there is one.
func (e *TaskError) Unwrap() []error {
	if e.Cause != nil {
		return []error{e.sentinel(), e.Cause}
	}
	return []error{e.sentinel()}
}

func (e *TaskError) sentinel() error {
	switch e.Status {
	case verbs.StatusFlushed:
		return ErrFlushed
	case verbs.StatusLocalProtectionError, verbs.StatusLocalAccessError:
		return ErrProtection
	}
	return ErrTaskFailed
}
