package mmap

import (
	"errors"

	"github.com/verbena-rdma/verbena/internal/errs"
)

// Errors of this package, matched with errors.Is. Those of the driver and of the
// operating system come through wrapped.
var (
	// ErrInvalid: an argument has a value that can never be right.
	ErrInvalid = errs.ErrInvalid
	// ErrRange: a size, or a piece of a Map, is empty or larger than possible.
	ErrRange = errs.ErrRange
	// ErrPermission: the Map's permissions do not allow it.
	ErrPermission = errs.ErrPermission
	// ErrInUse: buffers, pools of buffers or memory windows hold the Map, it has been
	// exported, or a device may still use its memory (ErrMemoryKept).
	ErrInUse = errs.ErrInUse
	// ErrRemote: the Map was imported, and only its owner can do this.
	ErrRemote = errs.ErrRemote
	// ErrClosed: the Map has been closed.
	ErrClosed = errs.ErrClosed
	// ErrNotHeld: a Map was released more often than held.
	ErrNotHeld = errs.ErrNotHeld
	// ErrNotSupported: the device, the kernel or the exporter of a dma-buf lacks the feature.
	ErrNotSupported = errs.ErrNotSupported
	// ErrExists: the Map is registered with that protection domain already.
	ErrExists = errors.New("already registered")
	// ErrMemoryKept: a device has failed, and may still use the memory. The Map stays open
	// until the device is closed; do not reuse the memory before.
	ErrMemoryKept = errs.ErrMemoryKept
	// ErrNotRegistered: the Map is not registered with that device or protection
	// domain.
	ErrNotRegistered = errors.New("not registered")
)
