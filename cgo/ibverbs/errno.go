//go:build linux && cgo && verbs

package ibverbs

import (
	"syscall"

	"github.com/verbena-rdma/verbena/verbs"
)

// kindOf returns the error of package verbs for the errno of a verb that makes or changes an
// object.
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
	}
	return nil
}

// adviceFor returns advice for an errno that does not explain itself.
func adviceFor(errno syscall.Errno) string {
	switch errno {
	case syscall.EIO, syscall.ENODEV:
		return "the device has been removed, or has failed"
	case syscall.ETIMEDOUT:
		return "the device did not answer in time"
	}
	return ""
}

// asResolutionError completes the error of a verb in which the kernel resolves a peer's address. In
// other verbs, these errnos come from the device: mlx5 returns ETIMEDOUT for a command without
// answer.
func asResolutionError(e *Error) *Error {
	switch e.Errno {
	case syscall.ETIMEDOUT, syscall.EHOSTUNREACH:
		e.Kind = verbs.ErrUnreachable
	case syscall.ENETUNREACH:
		e.Kind = verbs.ErrNoRoute
	default:
		return e
	}
	e.Detail = "the peer's address cannot be resolved from the address at the chosen GID index: check the route and the peer"
	return e
}
