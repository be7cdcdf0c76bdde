package perf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/listening"
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

// serveCM is the server that listens with the connection manager, at one address, at those of one
// device, or at all of this host. It uses one device to listen to a client and to measure, because
// clients reach no other device at its address.
func (s *server) serveCM(ctx context.Context, told func([]netip.AddrPort)) (err error) {
	clients := &cmClients{server: s, served: make(chan error, 1)}
	clients.ctx, clients.stop = context.WithCancel(ctx)
	defer clients.stop()
	bind, _ := netip.ParseAddr(s.o.bind)
	if bind.IsUnspecified() {
		s.o.bind, bind = "", netip.Addr{}
	}
	if s.o.device == "" && s.o.bind == "" {
		e, err := route.Serve(uint16(s.o.port), route.ServeConfig{
			Open: func(name string) (route.Part, error) {
				o := *s.o
				o.device = name
				return clients.open(&o, bind)
			},
			Added: told, Log: s.log,
		})
		if err != nil {
			return fmt.Errorf("listen for clients: %w", err)
		}
		told(e.Addrs())
		return errors.Join(clients.wait(nil), e.Close())
	}
	p, err := clients.open(s.o, bind)
	if err != nil {
		return err
	}
	at, _, err := p.listen(net.JoinHostPort(s.o.bind, strconv.Itoa(s.o.port)))
	if err != nil {
		return errors.Join(fmt.Errorf("listen for clients: %w", err), p.Close())
	}
	told(listening.At(p.device.dev, at))
	return errors.Join(clients.wait(p.done), p.Close())
}

// cmClients are the clients of all parts of a server.
type cmClients struct {
	server *server
	ctx    context.Context // ends with the server
	stop   context.CancelFunc
	served chan error // with -once, the result of the first client
}

// wait waits until ctx ends, failed is closed or, with -once, a client was served. Clients that are being
// served end then.
func (c *cmClients) wait(failed <-chan struct{}) (err error) {
	select {
	case <-c.ctx.Done():
	case <-failed:
	case err = <-c.served:
	}
	c.stop()
	return err
}

// cmPart is the part of the server on one device.
type cmPart struct {
	clients *cmClients
	device  *openDevice
	stack   *rsocket.Stack
	ctx     context.Context // ends with the part
	stop    context.CancelFunc
	running sync.WaitGroup // for each listener a goroutine, with its clients

	fail func(error) // of a listener; the first call counts
	done chan struct{}
	err  error // set before done is closed
}

func (c *cmClients) open(o *options, bind netip.Addr) (*cmPart, error) {
	d, err := open(o, bind)
	if err != nil {
		return nil, err
	}
	stack, err := newStack(d)
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	p := &cmPart{clients: c, device: d, stack: stack, done: make(chan struct{})}
	p.ctx, p.stop = context.WithCancel(c.ctx)
	var once sync.Once
	p.fail = func(err error) {
		once.Do(func() {
			p.err = err
			close(p.done)
		})
	}
	return p, nil
}

// Listen implements route.Part.
func (p *cmPart) Listen(addr netip.AddrPort) (port uint16, stop func(), err error) {
	at, stop, err := p.listen(addr.String())
	return at.Port(), stop, err
}

func (p *cmPart) listen(addr string) (at netip.AddrPort, stop func(), err error) {
	l, err := p.stack.Listen(addr)
	if err != nil {
		return at, nil, err
	}
	var stopped atomic.Bool
	c := p.clients
	own := &server{o: c.server.o, log: c.server.log, busy: c.server.busy, device: p.device}
	p.running.Go(func() {
		served, err := own.accept(p.ctx, l, func(conn net.Conn) netip.AddrPort { return conn.RemoteAddr().(*rsocket.Addr).AddrPort })
		switch {
		case served:
			select {
			case c.served <- err:
			default: // it was not the first
			}
		case err != nil && !stopped.Load():
			p.fail(err)
		}
	})
	stop = func() {
		stopped.Store(true)
		_ = l.Close()
	}
	return l.Addr().(*rsocket.Addr).AddrPort, stop, nil
}

// Done implements route.Part.
func (p *cmPart) Done() <-chan struct{} { return p.done }

// Close implements route.Part.
func (p *cmPart) Close() error {
	p.stop()
	p.running.Wait()
	return errors.Join(p.err, p.stack.Close(), p.device.Close())
}
