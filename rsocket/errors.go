package rsocket

import (
	"net"
	"net/netip"

	"github.com/verbena-rdma/verbena/internal/errs"
)

// Errors of this package, matched with errors.Is. Connections and listeners return *net.OpError, which
// match net.ErrClosed, os.ErrDeadlineExceeded, syscall.ECONNRESET and so on, beside the reason.
var (
	// ErrInvalid: an argument has a value that can never be right.
	ErrInvalid = errs.ErrInvalid
	// ErrRange: a setting is outside its limits.
	ErrRange = errs.ErrRange
	// ErrNotSupported: the device has no connection manager. It matches errors.ErrUnsupported.
	ErrNotSupported = errs.ErrNotSupported
	// ErrProtocol: the peer has sent what the rsockets protocol does not allow.
	ErrProtocol = errs.ErrProtocol
)

// network is the name of the network in addresses and errors.
const network = "rdma"

// Addr is the address of one end of a connection.
type Addr struct{ netip.AddrPort }

// Network returns "rdma".
func (*Addr) Network() string { return network }

func opError(op string, addr net.Addr, err error) error {
	return &net.OpError{Op: op, Net: network, Addr: addr, Err: err}
}

// opError is the error of a method of a connection.
func (c *Conn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: network, Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}
