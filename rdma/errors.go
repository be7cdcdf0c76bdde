package rdma

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/internal/gid"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/verbs"
)

// Errors of this package, matched with errors.Is. Errors of buffers, memory maps,
// descriptors, the engine and the device come through wrapped, and match those of
// their own packages.
var (
	ErrInvalid      = errors.New("invalid argument")
	ErrRange        = errors.New("out of range")
	ErrPermission   = errors.New("permission missing")
	ErrNoData       = errors.New("source buffer holds no data")
	ErrNotSupported = errors.New("not supported by the device")
	ErrGID          = gid.ErrNone
	ErrFull         = errors.New("no connection left")
	ErrNotReady     = errors.New("connection not ready")
	ErrMismatch     = errors.New("ends do not fit together")
	ErrTimeout      = errors.New("connecting took too long")
	ErrPeerClosed   = errors.New("closed by the peer")
	ErrPeerRefused  = errors.New("request of the peer refused")
	ErrDevice       = errors.New("device failed")

	// What a failed task's status means; a *TaskError matches one of them.
	ErrFlushed          = pe.ErrFlushed
	ErrLocalLength      = errors.New("message longer than the buffer")
	ErrLocalProtection  = errors.New("local memory not accessible")
	ErrRemoteInvalid    = errors.New("request refused by the peer as invalid")
	ErrRemoteAccess     = errors.New("access refused by the peer")
	ErrRemoteOperation  = errors.New("operation failed at the peer")
	ErrRetryExceeded    = errors.New("peer does not answer")
	ErrRNRRetryExceeded = errors.New("peer has no receive posted")
	ErrTaskFailed       = errors.New("task failed")
)

// TaskError is the error of a task that was submitted and failed. It matches the
// sentinel of its status with errors.Is.
type TaskError struct {
	Op     Operation
	Status verbs.Status // never StatusSuccess
	// Connection is the one the task ran on. It is nil for a receive that no
	// message had arrived for.
	Connection  *Connection
	VendorError uint32 // the device's own code; zero if it has none
}

// Error names the operation, the connection and the status, and says what to do
// about it.
func (e *TaskError) Error() string {
	s := "rdma: " + e.Op.String()
	if e.Connection != nil {
		s += " on " + e.Connection.String()
	}
	s += ": " + e.Status.String()
	if e.VendorError != 0 {
		s += fmt.Sprintf(" (vendor code %#x)", e.VendorError)
	}
	if advice := statusOf(e.Status).advice; advice != "" {
		s += "; " + advice
	}
	return s
}

// Unwrap returns the sentinel of the status.
func (e *TaskError) Unwrap() error { return statusOf(e.Status).err }

type statusMeaning struct {
	err    error
	advice string
}

func statusOf(s verbs.Status) statusMeaning {
	switch s {
	case verbs.StatusFlushed:
		return statusMeaning{ErrFlushed, "the connection was closed or had failed before: Connection.Err has the reason"}
	case verbs.StatusLocalLengthError:
		return statusMeaning{ErrLocalLength, "make the buffer as large as the largest message of the peer"}
	case verbs.StatusLocalProtectionError, verbs.StatusLocalAccessError:
		return statusMeaning{ErrLocalProtection, "keep the memory map open, and registered in the context's protection domain, until the task has completed"}
	case verbs.StatusRemoteInvalidRequest:
		return statusMeaning{ErrRemoteInvalid, "check that the peer's receives are large enough, and what its Config.Permissions allow"}
	case verbs.StatusRemoteAccessError:
		return statusMeaning{ErrRemoteAccess, "check that the peer's memory is still registered, its bounds, and the permissions of both its memory map and its context"}
	case verbs.StatusRemoteOperationError:
		return statusMeaning{ErrRemoteOperation, "look for the reason at the peer"}
	case verbs.StatusRetryExceeded, verbs.StatusResponseTimeout:
		return statusMeaning{ErrRetryExceeded, "check that the peer is alive and that UDP packets get through"}
	case verbs.StatusRNRRetryExceeded:
		return statusMeaning{ErrRNRRetryExceeded, "post receives at the peer, or raise Config.RNRRetry"}
	}
	return statusMeaning{err: ErrTaskFailed}
}
