package sockets

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

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
func open(o options, connections int) (stack, error) {
	dev := o.device
	if dev == "" {
		return tcp{}, nil
	}
	s := &sockets{counters: o.counters}
	var err error
	if s.dev, err = device.Open(dev); err != nil {
		return nil, err
	}
	s.stack, err = rsocket.New(rsocket.Config{
		Device: s.dev, MaxConnections: connections, Backlog: connections, SendBuffer: o.send, ReceiveBuffer: o.receive,
	})
	if err != nil {
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

	counters bool // write those of the device to standard error in the end
}

func (s *sockets) listen(address string) (net.Listener, error) { return s.stack.Listen(address) }
func (s *sockets) dial(ctx context.Context, address string) (net.Conn, error) {
	return s.stack.Dial(ctx, address)
}

func (s *sockets) close() error {
	err := s.stack.Close()
	if s.counters {
		list, e := s.dev.Counters()
		err = errors.Join(err, e)
		for _, c := range list {
			if c.Value > 0 {
				fmt.Fprintf(os.Stderr, "%s %d, ", c.Name, c.Value)
			}
		}
		fmt.Fprintln(os.Stderr)
	}
	return errors.Join(err, s.dev.Close())
}
