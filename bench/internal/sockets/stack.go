package sockets

import (
	"context"
	"errors"
	"net"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/rsocket"
	"github.com/verbena-rdma/verbena/verbs"
)

// stack makes and accepts connections.
type stack interface {
	listen(address string) (net.Listener, error)
	dial(ctx context.Context, address string) (net.Conn, error)
	close() error
}

// conn is what both kinds of connections have.
type conn interface {
	net.Conn
	CloseWrite() error
}

// open opens a stack with room for so many connections: of rsocket on a device, or of TCP without
// one.
func open(dev string, connections int) (stack, error) {
	if dev == "" {
		return tcp{}, nil
	}
	s := &sockets{}
	var err error
	if s.dev, err = device.Open(dev); err != nil {
		return nil, err
	}
	if s.stack, err = rsocket.New(rsocket.Config{Device: s.dev, MaxConnections: connections, Backlog: connections}); err != nil {
		return nil, errors.Join(err, s.dev.Close())
	}
	return s, nil
}

type tcp struct{}

func (tcp) listen(address string) (net.Listener, error) { return net.Listen("tcp", address) }
func (tcp) dial(ctx context.Context, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}
func (tcp) close() error { return nil }

type sockets struct {
	dev   verbs.Device
	stack *rsocket.Stack
}

func (s *sockets) listen(address string) (net.Listener, error) { return s.stack.Listen(address) }
func (s *sockets) dial(ctx context.Context, address string) (net.Conn, error) {
	return s.stack.Dial(ctx, address)
}
func (s *sockets) close() error { return errors.Join(s.stack.Close(), s.dev.Close()) }
