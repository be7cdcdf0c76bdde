//go:build linux && cgo && verbs

package ibverbs

// #include "verbena_ibverbs.h"
import "C"

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// checkDestroyed calls the function checkDestroyed with the device's context.
func (d *device) checkDestroyed(verb, asked string, errno C.int) error {
	// Device.Close clears ctx only when no object is left.
	return checkDestroyed(d.ctx, verb, asked, errno)
}

// checkDestroyed returns nil also if the kernel has taken the device away. In that case the kernel
// has destroyed the object itself, so no memory is in use, and libibverbs fails with EIO. The
// memory of libibverbs for the object is leaked: an event fetched before may still refer to the
// object. RDMAV_ALLOW_DISASSOC_DESTROY would free it without waiting for the event, and would
// turn every EIO in the process into success.
func checkDestroyed(ctx *C.struct_ibv_context, verb, asked string, errno C.int) error {
	if errno == 0 {
		return nil
	}
	e := verbError(verb, asked, syscall.Errno(errno))
	switch {
	case e.Errno != syscall.EIO && e.Errno != syscall.ENODEV:
	case disassociated(ctx):
		return nil
	default:
		// It must not match verbs.ErrNoDevice, after which the memory would be reused.
		e.Kind, e.Detail = nil, "the device has failed, but the kernel still has it: the device may still use the object"
	}
	return e
}

// disassociated reports whether the kernel has taken the device away from this process. A query of the
// GID table reads the kernel's memory, and fails with EIO only in this case. Kernels before
// 5.11 do not have this query; for them, disassociated checks whether the kernel still lists the device.
func disassociated(ctx *C.struct_ibv_context) bool {
	var entry C.struct_ibv_gid_entry
	n, err := C.vb_query_gid_table(ctx, &entry, 1)
	if n < 0 && (syscall.Errno(-n) == syscall.EIO || n == -1 && err == syscall.EIO) {
		return true
	}
	return unlisted(C.GoString(&ctx.device.dev_name[0]))
}

// destroyChannel destroys the channel of a destroyed queue. If the kernel has taken the device
// away, libibverbs still holds the queue and refuses; destroyChannel then only closes the file.
func (q *completionQueue) destroyChannel() error {
	errno := C.vb_destroy_comp_channel(q.channel)
	if syscall.Errno(errno) == syscall.EBUSY && disassociated(q.device.ctx) {
		return unix.Close(int(q.channel.fd))
	}
	return checkErrno("ibv_destroy_comp_channel", q.String(), errno)
}
