// Package errs declares the sentinel errors that several packages share. Those packages
// alias them, so that errors.Is gives the same answer for the name in any package:
// rdma.ErrInvalid matches an error that comes from mmap or from a driver.
//
// A sentinel that only one package can return is declared in that package. Two packages must
// not declare different values under one name; the test of this package checks that.
//
// The texts name no object and no package, because each text is used by all of the packages.
// An error message adds the operation, its object, and what to do.
package errs

import "errors"

var (
	// ErrInvalid: an argument has a value that is never valid.
	ErrInvalid = errors.New("invalid argument")
	// ErrRange: a number or a piece of memory lies outside the permitted range.
	ErrRange = errors.New("out of range")
	// ErrPermission: a memory map or a sync event does not grant the requested access.
	// It does not match fs.ErrPermission, which is the operating system's refusal.
	ErrPermission = errors.New("permission missing")
	// ErrClosed: this program has closed the object. It matches neither net.ErrClosed nor
	// fs.ErrClosed: those mean sockets and files, and a program that ends a loop on them
	// must not end it because of a memory map.
	ErrClosed = errors.New("closed")
	// ErrInUse: something else still uses the object.
	ErrInUse = errors.New("in use")
	// ErrBusy: another goroutine is doing this, and only one can do so at a time.
	ErrBusy = errors.New("busy")
	// ErrExhausted: all elements of a pool or an inventory are allocated.
	ErrExhausted = errors.New("exhausted")
	// ErrFreed: the object was freed, or never allocated.
	ErrFreed = errors.New("freed")
	// ErrNotHeld: the object was released more often than held.
	ErrNotHeld = errors.New("not held")
	// ErrRemote: the object was imported, and only its owner can do this.
	ErrRemote = errors.New("belongs to a peer")
	// ErrNotSupported: the platform, the kernel or the device lacks the feature.
	// It matches errors.ErrUnsupported.
	ErrNotSupported error = new(notSupported)
	// ErrTimeout: the operation did not complete in the time that was set. If a
	// context.Context ended the wait, the error matches the cause of that context instead.
	ErrTimeout = errors.New("timed out")
	// ErrGID: a port has no usable GID, or not the requested one.
	ErrGID = errors.New("no usable GID")
	// ErrDevice: the device failed, or refused a valid request.
	ErrDevice = errors.New("device failed")
	// ErrMemoryKept: the device failed in such a way that it may still read or write
	// memory that was given to it.
	ErrMemoryKept = errors.New("the device may still use the memory")
	// ErrRejected: the peer rejected this end.
	ErrRejected = errors.New("rejected by the peer")
	// ErrPending: it has not ended, so it has no result.
	ErrPending = errors.New("still pending")
	// ErrProtocol: the peer sent what the protocol does not allow, or speaks another one.
	ErrProtocol = errors.New("protocol violated by the peer")
	// ErrNoData: a source buffer holds no data.
	ErrNoData = errors.New("source buffer holds no data")
	// ErrFlushed: the work was not carried out, because the context, the
	// connection or the graph that it belonged to had ended.
	ErrFlushed = errors.New("flushed")
	// ErrTaskFailed: a task failed with a status that has no sentinel of its own.
	ErrTaskFailed = errors.New("task failed")
	// ErrPanicked: a function given by the caller panicked, or ended its goroutine.
	ErrPanicked = errors.New("function panicked")
)

// notSupported has a size, so that no other pointer is equal to ErrNotSupported.
type notSupported struct{ _ byte }

func (*notSupported) Error() string { return "not supported" }

func (*notSupported) Unwrap() error { return errors.ErrUnsupported }
