package ibverbs

import (
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/verbs"
)

// Error is a verb that failed. It matches the errno, and the error of package
// verbs that stands for it where there is one.
type Error struct {
	Verb   string        // the function of libibverbs
	Asked  string        // what was asked of it, and on what, unless an error around it says so
	Errno  syscall.Errno // zero if the verb gave none
	Detail string        // what was wrong and what to do, as far as is known
	Kind   error         // one of package verbs' errors, or nil
}

func (e *Error) Error() string {
	s := e.Verb
	if e.Asked != "" {
		s += ": " + e.Asked
	}
	if e.Errno != 0 {
		s += fmt.Sprintf(": %v (errno %d)", e.Errno, int(e.Errno))
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// Unwrap makes errors.Is match the errno and the kind.
func (e *Error) Unwrap() []error {
	var list []error
	if e.Errno != 0 {
		list = append(list, e.Errno)
	}
	if e.Kind != nil {
		list = append(list, e.Kind)
	}
	return list
}

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
