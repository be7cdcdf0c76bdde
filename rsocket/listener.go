package rsocket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"sync"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/rsocket/internal/hosts"
	"github.com/verbena-rdma/verbena/rsocket/internal/neterr"
	"github.com/verbena-rdma/verbena/rsocket/internal/protocol"
	"github.com/verbena-rdma/verbena/rsocket/internal/shared"
)

// Listener accepts connections. It is a net.Listener; all methods may be called from any goroutine.
type Listener struct {
	addr    *Addr
	parts   []*listening
	backlog int

	mu      sync.Mutex
	changed sync.Cond // for Accept
	failure error     // net.ErrClosed after Close, or why the stack has failed; nil: it listens
	ready   fifo.Queue[*Conn]
	opening int // connections being established
}

// listening is the part of a Listener on one Stack.
type listening struct {
	*Listener
	stack  *Stack
	shared *shared.Ref[*Stack]   // nil: the program has made the stack
	place  fifo.Node[*listening] // in the list of the stack
	rdma   *rdma.Listener        // belongs to the engine's goroutine
}

func newListener(backlog int) *Listener {
	l := &Listener{backlog: cmp.Or(backlog, defaultBacklog)}
	l.changed.L = &l.mu
	return l
}

// Listen listens on an address of the device: HOST:PORT. HOST is an IP address, a name, or empty
// for all addresses of the device; IPv6 addresses are in brackets. With port 0 a free one is
// chosen. The ports are those of RDMA_PS_TCP, which have nothing to do with the ports of TCP.
// Errors are *net.OpError, and match those of rdma.Connections.Listen.
func (s *Stack) Listen(addr string) (*Listener, error) {
	l := newListener(s.cfg.Backlog)
	list, port, err := hosts.ToListen(addr)
	if err == nil {
		err = l.add(s, list, port, nil)
	}
	if err != nil {
		return nil, listenError(addr, err)
	}
	return l, nil
}

func listenError(addr string, err error) error {
	return opError("listen", addressOf(addr), neterr.Of(context.Background(), err))
}

// add makes the listener listen on the first of the addresses that the device has.
func (l *Listener) add(s *Stack, list []string, port string, from *shared.Ref[*Stack]) error {
	p := &listening{Listener: l, stack: s, shared: from}
	if err := register(s, &s.listeners, &p.place, p, math.MaxInt); err != nil {
		return err
	}
	err := await.Func(context.Background(), s.engine, func() (err error) {
		for _, h := range list {
			if p.rdma, err = s.rdma.Listen(net.JoinHostPort(h, port), rdma.ListenConfig{OnRequest: p.request}); !errors.Is(err, ErrInvalid) {
				break
			}
		}
		return err
	})
	if err != nil {
		forget(s, &s.listeners, &p.place)
		return s.reason(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failure != nil { // it has ended with the stack
		return l.failure
	}
	l.parts = append(l.parts, p)
	if len(l.parts) == 1 {
		l.addr = s.addr(p.rdma.Addr())
	}
	return nil
}

// Accept is AcceptConn, for net.Listener.
func (l *Listener) Accept() (net.Conn, error) { return asNetConn(l.AcceptConn()) }

// AcceptConn waits for the next connection that a peer makes. The error is a *net.OpError that
// matches net.ErrClosed after Close, or the error of the device.
func (l *Listener) AcceptConn() (*Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.ready.Len() == 0 {
		if l.failure != nil {
			return nil, l.opError("accept", l.failure)
		}
		host.Wait(l.parts[0].stack.host, &l.changed)
	}
	c := l.ready.Pop()
	c.shared.Retain()
	return c, nil
}

// Addr is the address that the listener listens on, an *Addr.
func (l *Listener) Addr() net.Addr { return l.addr }

// Close ends the listener, and closes the connections that wait for Accept. Closing again fails with
// an error that matches net.ErrClosed.
func (l *Listener) Close() (err error) {
	if !l.end(net.ErrClosed) {
		return l.opError("close", net.ErrClosed)
	}
	for _, p := range l.parts {
		_ = p.stack.engine.Do(func() { _ = p.rdma.Close() }) // a closed engine has no listeners
		forget(p.stack, &p.stack.listeners, &p.place)
		err = errors.Join(err, p.shared.Release())
	}
	return err
}

// end makes Accept fail. It reports false after Close.
func (l *Listener) end(failure error) bool {
	l.mu.Lock()
	if l.failure == net.ErrClosed {
		l.mu.Unlock()
		return false
	}
	l.failure = failure
	var waiting []*Conn
	for l.ready.Len() > 0 {
		waiting = append(waiting, l.ready.Pop())
	}
	l.changed.Broadcast()
	l.mu.Unlock()
	for _, c := range waiting {
		c.close()
	}
	return true
}

func (l *Listener) opError(op string, err error) error { return opError(op, l.addr, err) }

// request handles a peer's request, on the engine's goroutine.
func (l *listening) request(q *rdma.ConnectRequest) {
	s := l.stack
	if err := l.accept(q); err != nil {
		s.refused.Add(1)
		s.cfg.Log.Debug().Err(err).Stringer("peer", q.RemoteAddr()).Msg("refused a connection")
		_ = q.Reject(nil)
	}
}

func (l *listening) accept(q *rdma.ConnectRequest) error {
	s := l.stack
	hello, err := protocol.DecodeHello(q.PrivateData())
	if err != nil { // before memory is registered
		return fmt.Errorf("%w: private data with %w", ErrProtocol, err)
	}
	l.mu.Lock()
	waiting, opening := l.ready.Len(), l.opening
	if waiting >= l.backlog || opening >= maxOpening {
		l.mu.Unlock()
		return fmt.Errorf("%d connections wait for Accept, and %d peers have not confirmed theirs: call Accept, or raise Config.Backlog", waiting, opening)
	}
	l.opening++
	l.mu.Unlock()
	c, err := s.newConn(nil)
	if err != nil {
		l.settled(nil)
		return err
	}
	c.listener, c.shared = l.Listener, l.shared
	if err = c.meet(hello, nil); err == nil {
		var conn *rdma.Connection
		if conn, err = q.Accept(rdma.AcceptConfig{PrivateData: c.hello()}); err == nil {
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
	l.opening--
	closed := l.failure != nil
	if c != nil && !closed {
		l.ready.Push(c)
		l.changed.Signal()
	}
	l.mu.Unlock()
	if c != nil && closed {
		c.close()
	}
}
