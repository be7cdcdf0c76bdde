package verbs

import (
	"errors"

	"github.com/verbena-rdma/verbena/internal/errs"
)

// Errors that drivers wrap, matched with errors.Is. Errors of the operating system
// come through wrapped as well.
var (
	// ErrInvalid: an argument has a value that can never be right.
	ErrInvalid = errs.ErrInvalid
	// ErrInUse: an object that belongs to this one is still open.
	ErrInUse = errs.ErrInUse
	// ErrClosed: the object, or its device, has been closed.
	ErrClosed = errs.ErrClosed
	// ErrNotSupported: the platform, the kernel, the driver or the device lacks the feature.
	// It matches errors.ErrUnsupported too.
	ErrNotSupported = errs.ErrNotSupported
	// ErrNoDevice: no device has that name.
	ErrNoDevice = errors.New("no such device")
	// ErrState: the state of the queue pair does not allow the call.
	ErrState = errors.New("not possible in this state")
	// ErrQueueFull: the work queue holds as many requests as it was made for.
	ErrQueueFull = errors.New("queue full")
	// ErrLimit: beyond a limit of the device; Device.Query shows the limits.
	ErrLimit = errors.New("beyond the limits of the device")
	// ErrOverrun: the completion queue was full when a completion came. The queue and its
	// queue pairs are in error.
	ErrOverrun = errors.New("completion queue overrun")
	// ErrNoRoute: none of the device's ports and GIDs leads to that address.
	ErrNoRoute = errors.New("no route from this device")
	// ErrUnreachable: the peer's connection manager does not answer, or the kernel cannot
	// resolve the peer's address, since its host is down.
	ErrUnreachable = errors.New("no answer from the peer")
	// ErrNotListening: the peer's connection manager answers that no program listens on that
	// port.
	ErrNotListening = errors.New("nobody listens on that port")
	// ErrRejected: the peer has rejected the connection, for another reason.
	ErrRejected = errs.ErrRejected
)
