package rsocket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/device/route"
	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/internal/quota"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/rsocket/internal/deadline"
	"github.com/verbena-rdma/verbena/rsocket/internal/hosts"
	"github.com/verbena-rdma/verbena/rsocket/internal/neterr"
	"github.com/verbena-rdma/verbena/rsocket/internal/protocol"
	"github.com/verbena-rdma/verbena/rsocket/internal/shared"
)

// Listener accepts connections. It is a net.Listener; all methods may be called from any goroutine.
type Listener struct {
	addr    *Addr
	all     bool // at all addresses of this host: everywhere opens and closes the parts
	backlog int
	host    host.Host // that of the first part

	mu         sync.Mutex
	everywhere *route.Everywhere // nil: it is starting, or there is one part
	parts      []*listening
	changed    sync.Cond // for Accept
	deadline   deadline.Deadline
	failure    error // net.ErrClosed after Close, or why the stack has failed; nil: it listens
	ready      fifo.Queue[*Conn]
	// By the peer's quota.Network:
	opening quota.Places[netip.Addr] // connections being established
	waiting quota.Places[netip.Addr] // those that are ready

	anyPostponed bool // a part may have postponed requests
}

// listening is the part of a Listener on one Stack.
type listening struct {
	*Listener
	stack  *Stack
	shared *shared.Ref[*Stack]   // nil: the program has made the stack
	place  fifo.Node[*listening] // in the list of the stack
	closed bool                  // guarded by the lock of the Listener
	// These belong to the engine's goroutine.
	rdma      []*rdma.Listener         // at one address, or at all of the device
	postponed []request                // until their addresses have fewer connections that are being established
	queued    quota.Places[netip.Addr] // of these, by the peer's quota.Network
	full      bool                     // one was refused since, which was logged

	work      func() // answerPostponed
	scheduled atomic.Bool
}

// request is a peer's request, with its private data.
type request struct {
	*rdma.ConnectRequest
	hello protocol.Hello
}

// source is what the places of a listener are counted by.
func (r request) source() netip.Addr { return quota.Network(r.RemoteAddr().Addr()) }

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
		var p *listening
		if p, err = l.add(s, nil); err == nil {
			if err = p.listenAtFirst(list, port); err != nil {
				p.close()
			}
		}
	}
	if err != nil {
		return nil, listenError(addr, err)
	}
	return l, nil
}

func listenError(addr string, err error) error {
	return opError("listen", addressOf(addr), neterr.OfListen(err))
}

// add adds a part on a stack, which does not listen yet.
func (l *Listener) add(s *Stack, from *shared.Ref[*Stack]) (*listening, error) {
	p := &listening{Listener: l, stack: s, shared: from}
	p.work = p.answerPostponed
	if err := register(s, &s.listeners, &p.place, p, math.MaxInt); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failure != nil { // it was closed meanwhile, or has ended with a stack
		forget(s, &s.listeners, &p.place)
		return nil, l.failure
	}
	l.parts = append(l.parts, p)
	if l.host == nil {
		l.host = s.host
	}
	return p, nil
}

// listenAtFirst listens at the first of the addresses that the device has.
func (p *listening) listenAtFirst(list []string, port string) (err error) {
	var at netip.AddrPort
	for _, h := range list {
		if at, _, err = p.listenAt(net.JoinHostPort(h, port)); !errors.Is(err, ErrInvalid) {
			break
		}
	}
	if err == nil {
		p.addr = p.stack.addr(at)
	}
	return err
}

// Listen implements route.Part.
func (p *listening) Listen(addr netip.AddrPort) (port uint16, stop func(), err error) {
	at, stop, err := p.listenAt(addr.String())
	return at.Port(), stop, neterr.Innermost(err)
}

// Done implements route.Part.
func (p *listening) Done() <-chan struct{} { return p.stack.ended }

func (p *listening) listenAt(addr string) (at netip.AddrPort, stop func(), err error) {
	var l *rdma.Listener
	err = await.Func(context.Background(), p.stack.engine, func() (err error) {
		if l, err = p.stack.rdma.Listen(addr, rdma.ListenConfig{OnRequest: p.request, Backlog: p.backlog}); err == nil {
			p.rdma, at = append(p.rdma, l), l.Addr()
		}
		return err
	})
	if err != nil {
		return at, nil, p.stack.reason(err)
	}
	p.mu.Lock()
	p.anyPostponed = true // requests may have come already
	p.mu.Unlock()
	p.resume()
	return at, func() {
		_ = p.stack.engine.Do(func() { // a closed engine has no listeners
			_ = l.Close()
			p.rdma = slices.DeleteFunc(p.rdma, func(other *rdma.Listener) bool { return other == l })
		})
	}, nil
}

// close ends the part, and closes its connections that wait for Accept. Others are closed as soon as they
// are established. The stack, if it is shared, stays in use.
func (p *listening) close() {
	p.mu.Lock()
	p.closed = true
	p.parts = slices.DeleteFunc(p.parts, func(own *listening) bool { return own == p })
	var waiting []*Conn
	for range p.ready.Len() {
		c := p.ready.Pop()
		if c.stack == p.stack {
			p.waiting.Release(c.source)
			waiting = append(waiting, c)
		} else {
			p.ready.Push(c)
		}
	}
	p.mu.Unlock()
	_ = p.stack.engine.Do(func() { // a closed engine has no listeners
		for _, l := range p.rdma {
			_ = l.Close()
		}
		p.rdma = nil
	})
	forget(p.stack, &p.stack.listeners, &p.place)
	for _, c := range waiting {
		c.close()
	}
}

// Close implements route.Part.
func (p *listening) Close() error {
	p.close()
	p.stack.mu.Lock()
	failure := p.stack.failure
	p.stack.mu.Unlock()
	return errors.Join(failure, p.shared.Release())
}

// Accept is AcceptConn, for net.Listener.
func (l *Listener) Accept() (net.Conn, error) { return asNetConn(l.AcceptConn()) }

// AcceptConn waits for the next connection that a peer makes. The error is a *net.OpError that
// matches net.ErrClosed after Close, os.ErrDeadlineExceeded, or the error of the device.
func (l *Listener) AcceptConn() (*Conn, error) {
	c, err := l.next()
	if err == nil {
		l.resume()
	}
	return c, err
}

func (l *Listener) next() (*Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.failure != nil || l.deadline.Expired || l.ready.Len() == 0 {
		if l.failure != nil {
			return nil, l.opError("accept", l.failure)
		}
		if l.deadline.Expired {
			return nil, l.opError("accept", os.ErrDeadlineExceeded)
		}
		host.Wait(l.host, &l.changed)
	}
	c := l.ready.Pop()
	l.waiting.Release(c.source)
	c.shared.Retain() // its part, which is not closed, is a user
	return c, nil
}

// SetDeadline sets the time at which Accept fails with os.ErrDeadlineExceeded, even a call that waits,
// and also if connections are there. Zero: none.
func (l *Listener) SetDeadline(t time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failure != nil {
		return l.opError("set", l.failure)
	}
	l.deadline.Reset(l.host, &l.mu, t, l.changed.Broadcast)
	return nil
}

// Addr is the address that the listener listens on, an *Addr. That of all addresses is [::], and a dial to
// it goes to this host.
func (l *Listener) Addr() net.Addr { return l.addr }

// Addrs are the addresses at which peers reach the listener now: that of Addr, or, if it listens at all
// addresses of this host, these.
func (l *Listener) Addrs() []netip.AddrPort {
	if l.all {
		return l.everywhere.Addrs()
	}
	return []netip.AddrPort{l.addr.AddrPort}
}

// Close ends the listener, and closes the connections that wait for Accept. Closing again fails with
// an error that matches net.ErrClosed.
func (l *Listener) Close() error {
	if !l.end(net.ErrClosed) {
		return l.opError("close", net.ErrClosed)
	}
	return l.closeParts()
}

// closeParts closes the parts of a listener that has ended. Those that are being opened close then.
func (l *Listener) closeParts() (err error) {
	l.mu.Lock()
	everywhere, parts := l.everywhere, slices.Clone(l.parts)
	l.mu.Unlock()
	if everywhere != nil {
		return everywhere.Close()
	}
	if l.all {
		return nil
	}
	for _, p := range parts {
		p.close()
		err = errors.Join(err, p.shared.Release())
	}
	return err
}

// stackFailed ends the listener with its stack. If it has other parts, everywhere ends this one alone.
func (p *listening) stackFailed(err error) {
	if !p.all {
		p.end(err)
	}
}

// end makes Accept fail. It reports false after Close.
func (l *Listener) end(failure error) bool {
	l.mu.Lock()
	if l.failure == net.ErrClosed {
		l.mu.Unlock()
		return false
	}
	l.failure = failure
	l.deadline.Reset(nil, &l.mu, time.Time{}, nil)
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
	hello, err := protocol.DecodeHello(q.PrivateData())
	if err != nil {
		l.refuse(q, fmt.Errorf("%w: private data with %w", ErrProtocol, err))
		return
	}
	r := request{q, hello}
	if l.answer(r) {
		return
	}
	if !l.queued.Fits(r.source(), 2*l.backlog) {
		l.keepPostponed(func(request) bool { return true }) // some may have been withdrawn
	}
	if !l.queued.Fits(r.source(), 2*l.backlog) {
		if !l.full {
			l.full = true
			l.stack.cfg.Log.Warn().Stringer("peer", q.RemoteAddr()).Int("waiting", len(l.postponed)).
				Msg("refusing connections, since too many wait for Accept: call it more often, or raise Config.Backlog")
		}
		l.refuse(q, errWaiting)
		return
	}
	l.queued.Take(r.source())
	l.postponed = append(l.postponed, r)
}

var errWaiting = errors.New("as many requests as Config.Backlog allows wait already")

// keepPostponed forgets the postponed requests that have been withdrawn, and those that need not wait any
// longer.
func (l *listening) keepPostponed(wait func(request) bool) {
	l.postponed = slices.DeleteFunc(l.postponed, func(r request) bool {
		if r.Err() == nil && wait(r) {
			return false
		}
		l.queued.Release(r.source())
		return true
	})
	l.full = l.full && len(l.postponed) > 0
}

// answerPostponed answers the requests that need not wait any longer, on the engine's goroutine.
func (l *listening) answerPostponed() {
	l.scheduled.Store(false)
	l.keepPostponed(func(r request) bool { return !l.answer(r) })
}

// resume has the requests that are postponed looked at again.
func (l *Listener) resume() {
	l.mu.Lock()
	var parts []*listening
	if l.anyPostponed {
		parts = slices.Clone(l.parts)
	}
	l.anyPostponed = false
	l.mu.Unlock()
	for _, p := range parts {
		if p.scheduled.CompareAndSwap(false, true) {
			_ = p.stack.engine.Dispatch(p.work) // a closed engine has no requests
		}
	}
}

// answer accepts or rejects a request, or reports false if it has to wait.
func (l *listening) answer(r request) bool {
	if !l.admit(r.source()) { // before memory is registered
		return false
	}
	if err := l.accept(r); err != nil {
		l.refuse(r.ConnectRequest, err)
	}
	return true
}

func (l *listening) refuse(q *rdma.ConnectRequest, err error) {
	l.stack.refused.Add(1)
	l.stack.cfg.Log.Debug().Err(err).Stringer("peer", q.RemoteAddr()).Msg("refused a connection")
	_ = q.Reject(nil)
}

// admit takes a place for a connection that is being established, or reports that the request has to wait
// for one. There are twice Config.Backlog places, for connections that
// are being established and for those that wait for Accept. An address gets only as many of them as it
// leaves free, so that it keeps no others out while Accept is slow. For the same reason it can have
// no more connections being established than the Stack still has room for.
func (l *listening) admit(source netip.Addr) bool {
	free, places := l.stack.free(), 2*l.backlog
	l.mu.Lock()
	defer l.mu.Unlock()
	own, waiting := l.opening.Held(source), l.waiting.Held(source)
	if !l.waiting.Fits(source, places) || own+waiting >= places-l.opening.Taken()-l.waiting.Taken() || own > 0 && own >= free {
		l.anyPostponed = true
		return false
	}
	l.opening.Take(source)
	return true
}

// accept accepts a request that has a place.
func (l *listening) accept(r request) error {
	source := r.source()
	c, err := l.stack.newConn(nil)
	if err != nil {
		l.settled(source, nil)
		return err
	}
	c.listener, c.source, c.shared = l, source, l.shared
	if err = c.meet(r.hello, nil); err == nil {
		var conn *rdma.Connection
		if conn, err = r.Accept(rdma.AcceptConfig{PrivateData: c.hello()}); err == nil {
			c.bind(conn)
			return nil
		}
	}
	c.abandon() // settles it
	return err
}

// settled ends the establishment of a connection: with c, or with nil if it has failed.
func (l *listening) settled(source netip.Addr, c *Conn) {
	l.mu.Lock()
	l.opening.Release(source)
	closed := l.closed || l.failure != nil
	if c != nil && !closed {
		l.ready.Push(c)
		l.waiting.Take(source)
		l.changed.Signal()
	}
	l.mu.Unlock()
	if c != nil && closed {
		c.close()
	}
	l.resume()
}
