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
	"github.com/verbena-rdma/verbena/verbs"
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

// kindError is an error of one of the kinds that package net has, with its reason.
type kindError struct {
	kind   error
	reason error // nil: there is no more to say
}

func (e *kindError) Error() string {
	if e.reason == nil {
		return e.kind.Error()
	}
	return fmt.Sprintf("%v: %v", e.kind, e.reason)
}

func (e *kindError) Unwrap() []error { return []error{e.kind, e.reason} }

// Timeout makes that of net.OpError right.
func (e *kindError) Timeout() bool {
	t, ok := e.kind.(interface{ Timeout() bool })
	return ok && t.Timeout()
}

// reset is the error of a connection that has failed.
func reset(reason error) error { return &kindError{syscall.ECONNRESET, reason} }

// kindOf gives the error of a Dial or a Listen its kind. ctx is that of the call.
func kindOf(ctx context.Context, err error) error {
	kinds := []struct{ is, kind error }{
		{rdma.ErrNotListening, syscall.ECONNREFUSED},
		{rdma.ErrRejected, syscall.ECONNREFUSED},
		{rdma.ErrNoRoute, syscall.ENETUNREACH},
		{rdma.ErrUnreachable, syscall.EHOSTUNREACH},
		{rdma.ErrTimeout, syscall.ETIMEDOUT},
		{verbs.ErrInUse, syscall.EADDRINUSE},
	}
	if ctx.Err() != nil {
		kinds = []struct{ is, kind error }{{context.DeadlineExceeded, os.ErrDeadlineExceeded}}
	} else if e, ok := errors.AsType[*verbs.CMError](err); ok {
		err = e // the rest repeats the address
	}
	for _, k := range kinds {
		if errors.Is(err, k.is) {
			return &kindError{k.kind, err}
		}
	}
	return err
}

func opError(op string, addr net.Addr, err error) error {
	return &net.OpError{Op: op, Net: network, Addr: addr, Err: err}
}

// opError is the error of a method of a connection.
func (c *Conn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: network, Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}
