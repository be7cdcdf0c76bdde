package perf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/control"
	"github.com/verbena-rdma/verbena/device/route"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/rsocket"
)

// controlConnections is the limit for the control messages of all clients: one client is served,
// the others are told to wait.
const controlConnections = 4

// newStack makes streams for control messages by RDMA, for ends without TCP between them.
func newStack(d *openDevice) (*rsocket.Stack, error) {
	return rsocket.New(rsocket.Config{Device: d.dev, Path: rdma.PathConfig{Port: d.port, GIDIndex: d.gid}, MaxConnections: controlConnections})
}

// dialedStream is a stream whose Close also closes its stack.
type dialedStream struct {
	*rsocket.Conn
	stack *rsocket.Stack
}

func (s *dialedStream) Close() error { return errors.Join(s.Conn.Close(), s.stack.Close()) }

// dialCM connects to the server through the connection manager.
func dialCM(ctx context.Context, o *options, d *openDevice, addr string) (control.Stream, error) {
	stack, err := newStack(d)
	if err != nil {
		return nil, err
	}
	conn, err := reach(ctx, o, "verbena perf -R", func(ctx context.Context) (*rsocket.Conn, error) { return stack.Dial(ctx, addr) })
	if err != nil {
		return nil, errors.Join(err, stack.Close())
	}
	return &dialedStream{conn, stack}, nil
}

// serveCM is the server that listens with the connection manager. It uses one device to listen
// and to measure, because clients reach no other device at its address.
func (s *server) serveCM(ctx context.Context, listening func(netip.AddrPort)) (err error) {
	bind, _ := netip.ParseAddr(s.o.bind)
	if s.o.device == "" && (!bind.IsValid() || bind.IsUnspecified()) {
		s.o.device = route.DefaultDevice()
	}
	if bind.IsUnspecified() {
		bind = netip.Addr{}
	}
	d, err := open(s.o, bind)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.dev.Close()) }()
	stack, err := newStack(d)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stack.Close()) }()
	s.device = d
	l, err := stack.Listen(net.JoinHostPort(s.o.bind, strconv.Itoa(s.o.port)))
	if err != nil {
		return fmt.Errorf("listen for clients: %w", err)
	}
	addr := l.Addr().(*rsocket.Addr).AddrPort
	if addr.Addr().IsUnspecified() {
		addr = netip.AddrPortFrom(s.address(d), addr.Port())
	}
	listening(addr)
	return s.accept(ctx, l, func(conn net.Conn) netip.AddrPort { return conn.RemoteAddr().(*rsocket.Addr).AddrPort })
}

// address is an address at which clients can dial the server. On the loopback interface, a
// dial to any loopback address reaches it.
func (s *server) address(d *openDevice) netip.Addr {
	table, err := d.dev.GIDs(max(d.port, 1))
	if err != nil || len(table) == 0 {
		return netip.IPv6Unspecified()
	}
	a := table[0].GID.Addr()
	if a.IsLoopback() {
		a = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return a
}
