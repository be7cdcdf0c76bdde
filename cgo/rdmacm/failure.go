//go:build linux && cgo && verbs

package rdmacm

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/verbs"
)

// callError is the error of a function of librdmacm. It matches the errno, and the
// error of package verbs that stands for it where there is one.
func callError(function string, err error) error {
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return fmt.Errorf("%s: %w", function, err)
	}
	if kind := kindOf(errno); kind != nil {
		return fmt.Errorf("%s: %w (errno %d): %w", function, err, int(errno), kind)
	}
	return fmt.Errorf("%s: %w (errno %d)", function, err, int(errno))
}

func kindOf(errno syscall.Errno) error {
	switch errno {
	case syscall.ENOMEM, syscall.ENOSPC, syscall.EMFILE, syscall.ENFILE:
		return verbs.ErrLimit
	case syscall.EADDRINUSE:
		return verbs.ErrInUse
	case syscall.EADDRNOTAVAIL:
		return verbs.ErrInvalid
	case syscall.EOPNOTSUPP, syscall.ENOSYS, syscall.EAFNOSUPPORT, syscall.EPROTONOSUPPORT:
		return verbs.ErrNotSupported
	case syscall.ENODEV, syscall.EIO:
		return verbs.ErrNoDevice
	}
	return nil
}

// channelError says why there is no event channel.
func channelError(err error) error {
	switch {
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return fmt.Errorf("rdma_create_event_channel: /dev/infiniband/rdma_cm: this user may not read and write it: run as root, or join the group that owns it: %w", err)
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENODEV), errors.Is(err, syscall.ENXIO):
		return fmt.Errorf("rdma_create_event_channel: /dev/infiniband/rdma_cm: load the module rdma_ucm (modprobe rdma_ucm); in a container, make that file visible: %w: %w", err, verbs.ErrNotSupported)
	}
	return callError("rdma_create_event_channel", err)
}

func listenError(op, device string, err error) error {
	if errors.Is(err, verbs.ErrInUse) {
		err = fmt.Errorf("another listener of this machine has the port, close it or use another one: %w", err)
	}
	return fmt.Errorf("device %s: %s: %w", device, op, err)
}

func noIPv6(err error) bool {
	return errors.Is(err, syscall.EAFNOSUPPORT) || errors.Is(err, syscall.EADDRNOTAVAIL)
}

// checkService refuses transport services that the kernel's port spaces do not have.
func checkService(t verbs.QPType) error {
	switch t {
	case verbs.RC, verbs.UD:
		return nil
	case verbs.UC:
		return fmt.Errorf("the kernel's connection manager has no UC in the port space of TCP: use RC, exchange the attributes of UC queue pairs by other means, or use the software device: %w", verbs.ErrNotSupported)
	}
	return fmt.Errorf("no transport service %v: %w", t, verbs.ErrNotSupported)
}

// unresolved is the cause of an address or a route that was not found.
func unresolved(function string, errno syscall.Errno, device string) error {
	switch errno {
	case syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.EHOSTDOWN:
		return fmt.Errorf("%s: no neighbour answers for that address: is the peer up, and on this network? %w (errno %d): %w", function, errno, int(errno), verbs.ErrUnreachable)
	case syscall.ENETUNREACH, syscall.ENODEV, syscall.EADDRNOTAVAIL, syscall.EINVAL:
		return fmt.Errorf("%s: the machine's routes do not lead there over %s: %w (errno %d): %w", function, device, errno, int(errno), verbs.ErrNoRoute)
	}
	return callError(function, errno)
}

// Statuses of a SIDR_REP (IBTA 12.11).
const (
	sidrNotSupported = 1
	sidrRejected     = 2
)
