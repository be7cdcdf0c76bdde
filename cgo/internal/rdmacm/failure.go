//go:build linux && cgo && verbs

package rdmacm

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/verbs"
)

// callError returns the error of a function of librdmacm. It matches the errno, and the
// corresponding error of package verbs, if there is one.
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
	case syscall.EOPNOTSUPP, errNotSupported, syscall.ENOSYS, syscall.EAFNOSUPPORT, syscall.EPROTONOSUPPORT:
		return verbs.ErrNotSupported
	case syscall.ENODEV, syscall.EIO:
		return verbs.ErrNoDevice
	}
	return nil
}

// channelError returns why no event channel could be made.
func channelError(err error) error {
	switch {
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return fmt.Errorf("rdma_create_event_channel: /dev/infiniband/rdma_cm: this user has no read and write access: run as root, or join the group that owns the file: %w", err)
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENODEV), errors.Is(err, syscall.ENXIO):
		return fmt.Errorf("rdma_create_event_channel: /dev/infiniband/rdma_cm: load the module rdma_ucm (modprobe rdma_ucm); in a container, make that file visible: %w: %w", err, verbs.ErrNotSupported)
	}
	return callError("rdma_create_event_channel", err)
}

// listenError returns why a listener could not be made. The device has the address. So if the
// kernel says that the address is not available, another listener has the port at all addresses,
// or this listener wants all addresses and another has the port.
func listenError(op, device string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EADDRNOTAVAIL) {
		err = fmt.Errorf("another program on this machine uses the port; end it or use another port: %w: %w", err, verbs.ErrInUse)
	}
	return fmt.Errorf("device %s: %s: %w", device, op, err)
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

// unresolved returns why an address or a route was not found.
func unresolved(function string, errno syscall.Errno, device string) error {
	switch errno {
	case syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.EHOSTDOWN:
		return fmt.Errorf("%s: no neighbour answers for this address: check that the peer is up and on this network: %w (errno %d): %w", function, errno, int(errno), verbs.ErrUnreachable)
	case syscall.EADDRINUSE:
		return fmt.Errorf("%s: the local port is in use: %w (errno %d): %w", function, errno, int(errno), verbs.ErrInUse)
	case syscall.ENETUNREACH, syscall.ENODEV, syscall.EADDRNOTAVAIL, syscall.EINVAL:
		return fmt.Errorf("%s: no route of this machine leads to this address over %s: %w (errno %d): %w", function, device, errno, int(errno), verbs.ErrNoRoute)
	}
	return callError(function, errno)
}

// Statuses of a SIDR_REP (IBTA 12.11).
const (
	sidrNotSupported = 1
	sidrRejected     = 2
)
