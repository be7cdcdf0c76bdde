//go:build linux && cgo && verbs

package ibverbs

// #include "verbena_ibverbs.h"
import "C"

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// destroyed is the error of a verb that has destroyed an object of the device.
func (d *Device) destroyed(verb, asked string, errno C.int) error {
	// Device.Close clears ctx only when no object is left.
	return destroyed(d.ctx, verb, asked, errno)
}

// destroyed is nil, too, where the kernel has taken the device away. The kernel has then
// destroyed the object by itself, so that no memory is in use, and libibverbs refuses with
// EIO. What libibverbs has of the object is left to it, for good: an event that was fetched
// before may still name the object. RDMAV_ALLOW_DISASSOC_DESTROY would free it without
// waiting for the event, and make a success of every EIO in the process.
func destroyed(ctx *C.struct_ibv_context, verb, asked string, errno C.int) error {
	if errno == 0 {
		return nil
	}
	e := verbError(verb, asked, syscall.Errno(errno))
	switch {
	case e.Errno != syscall.EIO && e.Errno != syscall.ENODEV:
	case taken(ctx):
		return nil
	default:
		// It must not match verbs.ErrNoDevice, by which memory would be used again.
		e.Kind, e.Detail = nil, "the device has failed, but the kernel still has it: the device may still use the object"
	}
	return e
}

// taken reports whether the kernel has taken the device away from this process. Its GID
// table is read from the kernel's memory, and the only EIO of that is this one. Kernels
// before 5.11 cannot be asked so; there the device's file tells.
func taken(ctx *C.struct_ibv_context) bool {
	var entry C.struct_ibv_gid_entry
	n, err := C.vb_query_gid_table(ctx, &entry, 1)
	if n < 0 && (syscall.Errno(-n) == syscall.EIO || n == -1 && err == syscall.EIO) {
		return true
	}
	return vanished(C.GoString(&ctx.device.dev_name[0]))
}

// destroyChannel destroys the channel of a queue that was destroyed. Where libibverbs still
// has the queue, it refuses; then only the file is closed.
func (q *completionQueue) destroyChannel() error {
	errno := C.vb_destroy_comp_channel(q.channel)
	if syscall.Errno(errno) == syscall.EBUSY && taken(q.device.ctx) {
		return unix.Close(int(q.channel.fd))
	}
	return checkErrno("ibv_destroy_comp_channel", q.String(), errno)
}
