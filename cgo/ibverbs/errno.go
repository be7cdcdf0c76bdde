//go:build linux && cgo && verbs

package ibverbs

import (
	"syscall"

	"github.com/verbena-rdma/verbena/verbs"
)

// kindOf finds the error of package verbs for what a verb's errno means when an
// object is made or changed.
func kindOf(errno syscall.Errno) error {
	switch errno {
	case syscall.EINVAL:
		return verbs.ErrInvalid
	case syscall.ENOMEM, syscall.ENOSPC, syscall.EMFILE, syscall.ENFILE:
		return verbs.ErrLimit
	case syscall.EBUSY:
		return verbs.ErrInUse
	case syscall.EOPNOTSUPP, syscall.ENOSYS, syscall.EPROTONOSUPPORT:
		return verbs.ErrNotSupported
	case syscall.EIO, syscall.ENODEV:
		return verbs.ErrNoDevice
	case syscall.ETIMEDOUT, syscall.EHOSTUNREACH: // the peer's address is not resolved
		return verbs.ErrUnreachable
	case syscall.ENETUNREACH:
		return verbs.ErrNoRoute
	}
	return nil
}

// hintFor says what to do where the errno alone does not.
func hintFor(errno syscall.Errno) string {
	switch errno {
	case syscall.EIO, syscall.ENODEV:
		return "the device has been removed, or has failed"
	case syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.ETIMEDOUT:
		return "the peer's address cannot be resolved from the address at the chosen GID index: check the route and the peer"
	}
	return ""
}
