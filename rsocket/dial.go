package rsocket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/rsocket/internal/hosts"
	"github.com/verbena-rdma/verbena/rsocket/internal/neterr"
	"github.com/verbena-rdma/verbena/rsocket/internal/protocol"
)

// Dial connects to a program that listens with this package or with rsockets on HOST:PORT. HOST is
// an IP address or a name; IPv6 addresses are in brackets. An empty HOST and an unspecified address are
// this host, by an address of the device. The addresses of a name are tried in
// turn, and share the time until the deadline of ctx as with net.Dialer. Dial returns when the peer
// has accepted, and fails as soon as ctx ends, or after a minute for each address. Errors are
// *net.OpError, for the first address. They match, as those of TCP do, syscall.ECONNREFUSED if nobody
// listens or the peer refuses, syscall.EHOSTUNREACH, ENETUNREACH or EACCES if the network or a route of
// this host says so, ENETUNREACH if there is no route, and ETIMEDOUT if nobody answers; and ErrProtocol if
// the peer is no rsockets program, the cause of ctx, and those of rdma.Connections.Dial.
func (s *Stack) Dial(ctx context.Context, addr string) (*Conn, error) {
	return dial(ctx, addr, func(ctx context.Context, _, addr string) (*Conn, error) { return s.dial(ctx, addr) })
}

// dial dials the addresses of HOST:PORT with a function.
func dial(ctx context.Context, addr string, to func(ctx context.Context, host, addr string) (*Conn, error)) (*Conn, error) {
	list, port, err := hosts.Resolve(ctx, addr)
	if err != nil {
		return nil, opError("dial", addressOf(addr), neterr.OfDial(ctx, err))
	}
	if port == "0" {
		return nil, opError("dial", addressOf(addr), neterr.OfDial(ctx, fmt.Errorf("%w: 0 is no port", rdma.ErrNotListening)))
	}
	return hosts.Dial(ctx, list, port, func(ctx context.Context, host, addr string) (*Conn, error) {
		c, err := to(ctx, host, addr)
		if err != nil {
			return nil, opError("dial", addressOf(addr), neterr.OfDial(ctx, err))
		}
		return c, nil
	})
}

// DialContext is Dial for clients that take a dialer: see the function DialContext.
func (s *Stack) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	return dialer(ctx, network, addr, s.Dial)
}

func dialer(ctx context.Context, kind, addr string, dial func(context.Context, string) (*Conn, error)) (net.Conn, error) {
	if kind != "tcp" && kind != network {
		return nil, opError("dial", addressOf(addr), net.UnknownNetworkError(kind))
	}
	return asNetConn(dial(ctx, addr))
}

// asNetConn returns nil after an error, and not a net.Conn that holds a nil *Conn.
func asNetConn(c *Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (s *Stack) dial(ctx context.Context, addr string) (*Conn, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c, err := s.newConn(cancel)
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(addr, ":") { // this host
		addr = "[::]" + addr
	}
	_, err = await.Dial(ctx, s.rdma, addr, rdma.DialConfig{
		PrivateData: c.hello(), Once: true, Timeout: time.Minute,
		OnResponse: func(conn *rdma.Connection) {
			c.bind(conn)
			if err := c.meet(protocol.DecodeHello(conn.AcceptData())); err != nil {
				c.fail(err)
				return
			}
			_ = conn.Established() // it fails only if the peer has withdrawn, which ends the connection
		},
	})
	if err == nil {
		s.dialled.Add(1)
		return c, nil
	}
	c.abandon()
	c.mu.Lock()
	defer c.mu.Unlock()
	if errors.Is(c.failure, ErrProtocol) {
		err = c.failure
	}
	return nil, s.reason(err)
}

// addressOf is the address in the error of a call that was given a string.
func addressOf(addr string) net.Addr {
	if strings.HasPrefix(addr, ":") {
		addr = "[::]" + addr
	}
	if a, err := netip.ParseAddrPort(addr); err == nil {
		return &Addr{a}
	}
	return nil
}
