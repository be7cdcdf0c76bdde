package rsocket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/rsocket/internal/wire"
)

// Listener accepts connections. It is a net.Listener; all methods may be called from any goroutine.
type Listener struct {
	addr    Addr
	parts   []*listening
	backlog int

	mu       sync.Mutex
	changed  sync.Cond // for Accept
	deadline deadline
	closed   bool
	ready    fifo.Queue[*Conn]
	pending  int // connections of which Accept has not returned: ready, and those being established
}

// listening is the part of a Listener on one Stack.
type listening struct {
	*Listener
	stack  *Stack
	shared *shared        // nil: the program has made the stack
	rdma   *rdma.Listener // belongs to the engine's goroutine
}

func newListener(backlog int) *Listener {
	l := &Listener{backlog: backlog}
	l.changed.L = &l.mu
	return l
}

// Listen listens on an address of the device: HOST:PORT. HOST is an IP address, a name, or empty
// for all addresses of the device; IPv6 addresses are in brackets. With port 0 a free one is
// chosen. The ports are those of RDMA_PS_TCP, which have nothing to do with the ports of TCP.
// Errors are *net.OpError, and match those of rdma.Connections.Listen.
func (s *Stack) Listen(addr string) (*Listener, error) {
	l := newListener(s.cfg.Backlog)
	if err := l.add(s, addr, nil); err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Addr: addressOf(addr), Err: err}
	}
	return l, nil
}

// add makes the listener listen on an address of a Stack.
func (l *Listener) add(s *Stack, addr string, from *shared) error {
	addrs, err := resolve(addr)
	if err != nil {
		return err
	}
	s.mu.Lock()
	if s.closing || s.dead {
		defer s.mu.Unlock()
		return s.closedError()
	}
	s.listeners[l] = struct{}{}
	s.mu.Unlock()
	p := &listening{Listener: l, stack: s, shared: from}
	err = await.Func(context.Background(), s.engine, func() (err error) {
		for _, a := range addrs {
			if p.rdma, err = s.rdma.Listen(a, rdma.ListenConfig{OnRequest: p.request}); !errors.Is(err, ErrInvalid) {
				break // it is an address of the device
			}
		}
		return err
	})
	if err != nil {
		s.forget(l)
		return err
	}
	l.parts = append(l.parts, p)
	if len(l.parts) == 1 {
		l.addr = Addr{p.rdma.Addr()}
	}
	return nil
}

// forget forgets a listener that is closed.
func (s *Stack) forget(l *Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.listeners, l)
}

// resolve replaces a name in an address by its addresses, IPv4 first, as package net does.
func resolve(addr string) ([]string, error) {
	name, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	if _, err := netip.ParseAddr(name); err == nil || name == "" {
		return []string{addr}, nil
	}
	list, err := net.DefaultResolver.LookupNetIP(context.Background(), "ip", name)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(list, func(a, b netip.Addr) int { return a.Unmap().BitLen() - b.Unmap().BitLen() })
	addrs := make([]string, len(list))
	for i, a := range list {
		addrs[i] = net.JoinHostPort(a.Unmap().String(), port)
	}
	return addrs, nil
}

// Accept returns the next connection that a peer has made. Errors are *net.OpError, and match
// net.ErrClosed and os.ErrDeadlineExceeded.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.AcceptConn()
	if err != nil {
		return nil, err
	}
	return c, nil
}

// AcceptConn is Accept with the type of the connection.
func (l *Listener) AcceptConn() (*Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		switch {
		case l.closed:
			return nil, l.opError("accept", net.ErrClosed)
		case l.deadline.expired:
			return nil, l.opError("accept", os.ErrDeadlineExceeded)
		case l.ready.Len() > 0:
			l.pending--
			return l.ready.Pop(), nil
		}
		host.Wait(l.parts[0].stack.host, &l.changed)
	}
}

// SetDeadline sets the time at which Accept fails with os.ErrDeadlineExceeded. Zero: none.
func (l *Listener) SetDeadline(t time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return l.opError("set", net.ErrClosed)
	}
	l.deadline.reset(l.parts[0].stack.host, &l.mu, t, l.changed.Broadcast)
	return nil
}

// Addr is the address that the listener listens on, an *Addr.
func (l *Listener) Addr() net.Addr { return &l.addr }

// Close ends the listener, and resets the connections that wait for Accept. It does not wait.
// Closing again fails with an error that matches net.ErrClosed.
func (l *Listener) Close() error {
	l.mu.Lock()
	if l.closed {
		defer l.mu.Unlock()
		return l.opError("close", net.ErrClosed)
	}
	l.closed = true
	l.deadline.reset(nil, &l.mu, time.Time{}, nil)
	var waiting []*Conn
	for l.ready.Len() > 0 {
		waiting = append(waiting, l.ready.Pop())
	}
	l.changed.Broadcast()
	l.mu.Unlock()
	for _, c := range waiting {
		_ = c.Close()
	}
	for _, p := range l.parts {
		_ = p.stack.engine.Do(func() { _ = p.rdma.Close() }) // a closed engine has no listeners
		p.stack.forget(l)
		p.shared.release()
	}
	return nil
}

func (l *Listener) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: network, Addr: &l.addr, Err: err}
}

// request handles a peer's request, on the engine's goroutine.
func (l *listening) request(q *rdma.ConnectRequest) {
	s := l.stack
	if err := l.accept(q); err != nil {
		s.refused.Add(1)
		s.cfg.Log.Warn().Err(err).Stringer("peer", q.RemoteAddr()).Msg("refused a connection")
		_ = q.Reject(nil)
	}
}

func (l *listening) accept(q *rdma.ConnectRequest) error {
	s := l.stack
	hello, err := wire.DecodeHello(q.PrivateData())
	if err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	l.mu.Lock()
	full := l.pending >= l.backlog
	if !full {
		l.pending++
	}
	l.mu.Unlock()
	if full {
		return fmt.Errorf("%d connections wait for Accept: call it, or raise Config.Backlog", l.backlog)
	}
	c, err := s.newConn()
	if err != nil {
		l.settled(nil)
		return err
	}
	c.listener, c.shared = l.Listener, l.shared.retain()
	own := c.hello()
	if err = c.setPeer(&hello); err == nil {
		var conn *rdma.Connection
		if conn, err = q.Accept(rdma.AcceptConfig{PrivateData: own.Encode()}); err == nil {
			c.bind(conn)
			return nil
		}
	}
	c.abandon() // settles it
	return err
}

// settled ends the establishment of a connection: with c, or with nil if it has failed.
func (l *Listener) settled(c *Conn) {
	l.mu.Lock()
	closed := l.closed
	if c == nil || closed {
		l.pending--
	} else {
		l.ready.Push(c)
		l.changed.Signal()
	}
	l.mu.Unlock()
	if c != nil && closed {
		_ = c.Close()
	}
}
