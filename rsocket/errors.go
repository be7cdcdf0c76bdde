package rsocket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"github.com/verbena-rdma/verbena/internal/errs"
	"github.com/verbena-rdma/verbena/rdma"
)

// Errors of this package, matched with errors.Is. Those of connections and listeners are
// *net.OpError, and match net.ErrClosed, os.ErrDeadlineExceeded, syscall.ECONNRESET,
// syscall.ECONNREFUSED and so on, as those of package net do, beside the reason from package rdma.
var (
	// ErrInvalid: an argument has a value that can never be right.
	ErrInvalid = errs.ErrInvalid
	// ErrRange: a setting is outside its limits.
	ErrRange = errs.ErrRange
	// ErrNotSupported: the device has no connection manager. It matches errors.ErrUnsupported.
	ErrNotSupported = errs.ErrNotSupported
	// ErrProtocol: the peer has sent what the rsockets protocol does not allow.
	ErrProtocol = errors.New("rsockets protocol violated by the peer")
)

// network is the name of the network in addresses and errors.
const network = "rdma"

// Addr is the address of one end of a connection.
type Addr struct{ netip.AddrPort }

// Network returns "rdma".
func (*Addr) Network() string { return network }

// systemError is an error of the operating system's kind, with its reason.
type systemError struct {
	errno  syscall.Errno
	reason error // nil: there is no more to say
}

func (e *systemError) Error() string {
	if e.reason == nil {
		return e.errno.Error()
	}
	return fmt.Sprintf("%v: %v", e.errno, e.reason)
}

func (e *systemError) Unwrap() []error {
	if e.reason == nil {
		return []error{e.errno}
	}
	return []error{e.errno, e.reason}
}

// Timeout makes net.OpError.Timeout right.
func (e *systemError) Timeout() bool { return e.errno.Timeout() }

// reset is the error of a connection that has failed.
func reset(reason error) error { return &systemError{syscall.ECONNRESET, reason} }

// dialError is the error of a Dial. It names the kinds of failure as package net does.
func dialError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return &timeoutError{err}
		}
		return err
	}
	for _, kind := range []struct {
		is    error
		errno syscall.Errno
	}{
		{rdma.ErrNotListening, syscall.ECONNREFUSED},
		{rdma.ErrRejected, syscall.ECONNREFUSED},
		{rdma.ErrNoRoute, syscall.ENETUNREACH},
		{rdma.ErrUnreachable, syscall.EHOSTUNREACH},
		{rdma.ErrTimeout, syscall.ETIMEDOUT},
	} {
		if errors.Is(err, kind.is) {
			return &systemError{kind.errno, err}
		}
	}
	return err
}

// timeoutError is the error of a Dial whose context has reached its deadline.
type timeoutError struct{ reason error }

func (e *timeoutError) Error() string   { return "i/o timeout: " + e.reason.Error() }
func (e *timeoutError) Timeout() bool   { return true }
func (e *timeoutError) Temporary() bool { return true }
func (e *timeoutError) Unwrap() []error { return []error{os.ErrDeadlineExceeded, e.reason} }

// opError is the error of a method of a connection.
func (c *Conn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: network, Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}
