// Package errs owns the sentinel errors that several packages share. Those packages
// alias them, so that errors.Is gives the same answer whichever package is named:
// rdma.ErrInvalid matches an error that comes from mmap or from a driver.
//
// A sentinel that only one package can return is declared there. Two packages must
// not declare different values under one name; the test of this package checks that.
//
// The texts name no object and no package, because each stands in the messages of
// all of them. A message adds what was tried, on what, and what to do.
package errs

import "errors"

var (
	// ErrInvalid: an argument has a value that can never be right.
	ErrInvalid = errors.New("invalid argument")
	// ErrRange: a number or a piece of memory lies outside what is possible here.
	ErrRange = errors.New("out of range")
	// ErrPermission: a memory map or a sync event does not grant what is asked for.
	// It does not match fs.ErrPermission, which is the operating system's refusal.
	ErrPermission = errors.New("permission missing")
	// ErrClosed: the object has been closed by this program. It matches neither
	// net.ErrClosed nor fs.ErrClosed: those stand for sockets and files, and a
	// program that ends a loop on them must not end it because of a memory map.
	ErrClosed = errors.New("closed")
	// ErrInUse: something else still uses the object.
	ErrInUse = errors.New("in use")
	// ErrBusy: another goroutine is doing what one goroutine can do at a time.
	ErrBusy = errors.New("busy")
	// ErrExhausted: everything that a pool or an inventory has is allocated.
	ErrExhausted = errors.New("exhausted")
	// ErrFreed: the object was freed, or never allocated.
	ErrFreed = errors.New("freed")
	// ErrNotHeld: more was released than had been held.
	ErrNotHeld = errors.New("not held")
	// ErrRemote: the object was imported, and only its owner can do this.
	ErrRemote = errors.New("belongs to a peer")
	// ErrNotSupported: the platform, the kernel or the device lacks the feature.
	// It matches errors.ErrUnsupported.
	ErrNotSupported error = new(notSupported)
	// ErrTimeout: it did not happen within the time that was set for it. A wait that a
	// context.Context ended matches the cause of that instead.
	ErrTimeout = errors.New("timed out")
	// ErrGID: a port has no GID that can be used, or not the one asked for.
	ErrGID = errors.New("no usable GID")
	// ErrDevice: the device failed, or refused what it should have taken.
	ErrDevice = errors.New("device failed")
	// ErrMemoryKept: the device has failed in such a way that it may still read or write
	// memory of what was given to it.
	ErrMemoryKept = errors.New("the device may still use the memory")
	// ErrRejected: the peer has turned this end away.
	ErrRejected = errors.New("rejected by the peer")
	// ErrNoData: a source buffer holds no data.
	ErrNoData = errors.New("source buffer holds no data")
	// ErrFlushed: the work was given back undone, because the context, the
	// connection or the graph that it belonged to had ended.
	ErrFlushed = errors.New("flushed")
	// ErrTaskFailed: a task failed with a status that has no sentinel of its own.
	ErrTaskFailed = errors.New("task failed")
	// ErrPanicked: a function of the caller's panicked, or ended its goroutine.
	ErrPanicked = errors.New("function panicked")
)

// notSupported has a size, so that no other pointer is equal to ErrNotSupported.
type notSupported struct{ _ byte }

func (*notSupported) Error() string { return "not supported" }

func (*notSupported) Unwrap() error { return errors.ErrUnsupported }
