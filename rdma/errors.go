package rdma

import (
	"errors"

	"github.com/verbena-rdma/verbena/internal/errs"
	"github.com/verbena-rdma/verbena/verbs"
)

// Errors of this package, matched with errors.Is. Errors of buffers, memory maps,
// descriptors, the engine and the device come through wrapped.
var (
	// ErrInvalid: an argument has a value that can never be right.
	ErrInvalid = errs.ErrInvalid
	// ErrRange: a setting is outside its limits, or memory is too small or too large.
	ErrRange = errs.ErrRange
	// ErrPermission: the peer's memory map or sync event does not allow it.
	ErrPermission = errs.ErrPermission
	// ErrNotSupported: the device, or the peer's, lacks it. It matches
	// errors.ErrUnsupported too.
	ErrNotSupported = errs.ErrNotSupported
	// ErrGID: the port has no GID that can be used, or not the one asked for.
	ErrGID = errs.ErrGID
	// ErrNoData: the source buffer holds no data.
	ErrNoData = errs.ErrNoData
	// ErrDevice: the device failed, or refused what it should have taken.
	ErrDevice = errs.ErrDevice
	// ErrMemoryKept: the device has failed, and its queue pair could be destroyed neither by
	// this program nor by the kernel, so that it may still read or write the memory of a task
	// that has failed. Do not reuse that memory. Its memory maps refuse to be closed until the
	// device is.
	ErrMemoryKept = errs.ErrMemoryKept
	// ErrFull: the context has as many connections as it was made for.
	ErrFull = errors.New("no connection left")
	// ErrNotReady: the connection is not in the state that the call needs.
	ErrNotReady = errors.New("connection not ready")
	// ErrMismatch: the settings or the networks of the two ends do not fit.
	ErrMismatch = errors.New("ends do not match")
	// ErrTimeout: the peer did not connect within Config.ConnectTimeout.
	ErrTimeout = errs.ErrTimeout
	// ErrPeerClosed: the peer has closed the connection, or stopped its context.
	ErrPeerClosed = errors.New("closed by the peer")
	// ErrPeerRefused: this end refused a request of the peer, which ends the connection. (If
	// the peer refused one of this end: ErrRemoteAccess or ErrRemoteInvalid.)
	ErrPeerRefused = errors.New("request of the peer refused")

	// Why a connection by address was not made.

	// ErrNoRoute: none of the device's addresses leads to the peer's.
	ErrNoRoute = verbs.ErrNoRoute
	// ErrUnreachable: the peer's connection manager does not answer, or the network says that it cannot
	// reach its host, which matches syscall.EHOSTUNREACH, ENETUNREACH or EACCES too, as with TCP.
	ErrUnreachable = verbs.ErrUnreachable
	// ErrNotListening: the peer's connection manager, or by ICMP its host, answers that nobody listens. The
	// latter matches syscall.ECONNREFUSED too: nobody there has a device.
	ErrNotListening = verbs.ErrNotListening
	// ErrRejected: the peer has rejected the connection; a *verbs.CMError has the reason,
	// and what the peer's program says.
	ErrRejected = verbs.ErrRejected

	// What a failed task's status means; a *TaskError matches one of them.

	// ErrFlushed: the connection or the context ended before the task was done.
	ErrFlushed = errs.ErrFlushed
	// ErrTaskFailed: a status that has no sentinel of its own.
	ErrTaskFailed = errs.ErrTaskFailed
	// ErrLocalLength: a message was longer than the buffer of the receive.
	ErrLocalLength = errors.New("message longer than the buffer")
	// ErrLocalProtection: the device may not access the memory of a buffer here.
	ErrLocalProtection = errors.New("local memory not accessible")
	// ErrRemoteInvalid: the peer's queue pair does not allow or understand the
	// request, or it does not fit into the peer's receive.
	ErrRemoteInvalid = errors.New("request refused by the peer as invalid")
	// ErrRemoteAccess: the peer's memory is not registered there, too small, or does not allow
	// the access.
	ErrRemoteAccess = errors.New("access refused by the peer")
	// ErrRemoteOperation: the peer could not carry out the request.
	ErrRemoteOperation = errors.New("operation failed at the peer")
	// ErrRetryExceeded: the peer did not acknowledge a request, however often it was
	// repeated. Perhaps it refused the request, and the one packet that said so was lost: then
	// the peer's end of the connection has failed with ErrPeerRefused.
	ErrRetryExceeded = errors.New("peer does not answer")
	// ErrPeerDead: the peer's process, on this machine, ended without closing the connection.
	// Its errors also match ErrRetryExceeded.
	ErrPeerDead = errors.New("the process of the peer is dead")
	// ErrRNRRetryExceeded: the peer had no receive for the message, however often it
	// was repeated.
	ErrRNRRetryExceeded = errors.New("peer has no receive posted")
)

// adviceFor says what to do about a task that failed.
func adviceFor(op Operation, s verbs.Status) string {
	if s == verbs.StatusRemoteInvalidRequest {
		switch {
		case op == OpRead || op == OpSyncEventGet:
			return "the peer's context must allow reads: set mmap.RemoteRead in its Config.Permissions"
		case op.atomic():
			return "the peer's context must allow atomics: set mmap.RemoteAtomic in its Config.Permissions; and the address must be a multiple of 8"
		case op == OpAtomicWrite:
			return "the peer's device must have atomic writes: see verbs.DeviceAttr.AtomicWrite there"
		case op == OpSend || op == OpSendImm:
			return "the message was longer than the peer's receive; make the peer's receives as large as the largest message"
		}
	}
	return statusOf(s).advice
}

type statusMeaning struct {
	err    error
	advice string
}

func statusOf(s verbs.Status) statusMeaning {
	switch s {
	case verbs.StatusFlushed:
		return statusMeaning{ErrFlushed, "this program closed the connection or stopped the context"}
	case verbs.StatusLocalLengthError:
		return statusMeaning{ErrLocalLength, "make the buffer as large as the peer's largest message"}
	case verbs.StatusLocalProtectionError, verbs.StatusLocalAccessError:
		return statusMeaning{ErrLocalProtection, "keep the memory map open, and registered in the context's protection domain, until the task has completed"}
	case verbs.StatusRemoteInvalidRequest:
		return statusMeaning{ErrRemoteInvalid, "the peer does not accept such a request"}
	case verbs.StatusRemoteAccessError:
		return statusMeaning{ErrRemoteAccess, "check that the peer's memory is still registered, that the access is within its bounds, and that the peer's memory map and, for reads and atomics, its Config.Permissions allow it"}
	case verbs.StatusRemoteOperationError:
		return statusMeaning{ErrRemoteOperation, "look for the reason at the peer"}
	case verbs.StatusRemoteInvalidRDRequest:
		return statusMeaning{ErrRemoteInvalid, "the peer's device has no such queue pair: the queue pair was closed, or the descriptor is old"}
	case verbs.StatusRetryExceeded, verbs.StatusResponseTimeout:
		return statusMeaning{ErrRetryExceeded, "check that the peer is alive and that UDP packets get through"}
	case verbs.StatusRNRRetryExceeded:
		return statusMeaning{ErrRNRRetryExceeded, "post receives at the peer, or raise Config.RNRRetry"}
	}
	return statusMeaning{err: ErrTaskFailed}
}
