package rdma

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/verbs"
)

// ListenConfig says how a Listener answers.
type ListenConfig struct {
	// OnRequest is called for each request, on the engine's goroutine, inside Progress, never
	// inside another callback. It accepts or rejects the request, or leaves that to a later
	// callback; meanwhile the connection manager asks the peer to wait, for up to a minute.
	// Nil: requests are accepted in the order of arrival, and wait while no connection is
	// free, or while their address (of IPv6: its /64 network) has as many unconfirmed
	// connections as are free. If such a connection fails, it is closed after the callbacks that
	// report the failure, which frees its place.
	OnRequest func(q *ConnectRequest)
	// PrivateData goes to each accepted peer if OnRequest is nil: at most 196 bytes, or 136 in
	// a context of UD.
	PrivateData []byte
	// Backlog is how many requests may be unanswered, on the software device for each address of
	// peers: see verbs.CMListen. Those beyond it are dropped, and peers repeat them. Zero: 1,024.
	Backlog int
	// Await is how many connections of the listener must have become Ready before a Starting
	// context becomes Running. Otherwise the context waits only for connections that exist
	// already. The wait also ends with the listener. Zero: none. A listener that is made in
	// Running ignores it.
	Await int
}

// requestTaker is the context, *Connections or *Datagrams, for its listeners.
type requestTaker interface {
	// request handles a peer's request at a listener without OnRequest.
	request(q *ConnectRequest)
}

// Listener accepts connections of peers that dial an address (rdma_listen(3)). It belongs to
// the goroutine that drives the engine.
type Listener struct {
	manager  *connectionManager
	cfg      ListenConfig
	listener verbs.CMListener // nil: closed
	addr     netip.AddrPort
	requests fifo.List[*ConnectRequest] // not answered
	awaits   int                        // connections that keep the context in Starting
}

// listen is Listen, for a context in which it is legal.
func (m *connectionManager) listen(text string, cfg ListenConfig) (*Listener, error) {
	c := m.core
	host, port, err := splitAddr(text)
	if err != nil {
		return nil, err
	}
	addr, err := c.listenAddr(host)
	if err != nil {
		return nil, err
	}
	most := maxAcceptData
	switch c.set.Transport {
	case verbs.UD:
		most = maxAnswerData
	case verbs.SRD:
		return nil, fmt.Errorf("%w: SRD has no connection manager; exchange descriptors instead, with ExportEndpoint and NewPeer", ErrNotSupported)
	case verbs.UC:
		return nil, errNotByAddress
	}
	if len(cfg.PrivateData) > most {
		return nil, fmt.Errorf("%w: the private data has %d bytes; an answer holds at most %d", ErrRange, len(cfg.PrivateData), most)
	}
	switch {
	case cfg.Backlog < 0:
		return nil, fmt.Errorf("%w: ListenConfig.Backlog is %d; it must not be negative", ErrRange, cfg.Backlog)
	case cfg.Await < 0 || cfg.Await > 0 && c.set.Transport == verbs.UD:
		return nil, fmt.Errorf("%w: ListenConfig.Await is %d; it must be 0 or, in a context of connections, the number of connections to wait for", ErrRange, cfg.Await)
	}
	if err := m.use(); err != nil {
		return nil, err
	}
	l := &Listener{manager: m, cfg: cfg}
	l.cfg.PrivateData = slices.Clone(cfg.PrivateData)
	if l.listener, err = m.cm.Listen(verbs.CMListen{Addr: netip.AddrPortFrom(addr, port), Type: c.set.Transport, Backlog: cfg.Backlog, MTU: c.set.Path.MTU}); err != nil {
		return nil, err
	}
	l.addr = l.listener.Addr()
	m.listeners[l.listener] = l
	if cfg.Await > 0 && c.State() == pe.Starting {
		l.awaits = cfg.Await
		c.awaited++
	}
	return l, nil
}

// listenAddr returns the address of the device for a host in the address to listen on. The
// unspecified address means all addresses.
func (c *core) listenAddr(host string) (netip.Addr, error) {
	s := c.set
	if host == "" {
		if own := c.port.IP(); s.port.Chosen() && own.IsValid() {
			return asPeersKnow(own), nil
		}
		return netip.IPv6Unspecified(), nil
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return addr, fmt.Errorf("%w: %q is not an IP address or GID; listen on an address of the device, or on :PORT for all of them", ErrInvalid, host)
	}
	return addr.Unmap(), nil
}

// Addr is the address that it listens on, with the port that was chosen.
func (l *Listener) Addr() netip.AddrPort { return l.addr }

// String names the listener.
func (l *Listener) String() string {
	return fmt.Sprintf("listener %v of context %q", l.addr, l.manager.core.Name())
}

// Close ends the listener, and rejects the requests that have not been answered. Accepted
// connections go on. Closing again does nothing. While another goroutine drives the engine it
// fails with pe.ErrBusy.
func (l *Listener) Close() error {
	if err := l.manager.core.control.Owned("close a listener"); err != nil {
		return err
	}
	return l.close()
}

func (l *Listener) close() error {
	if l.listener == nil {
		return nil
	}
	listener := l.listener
	l.listener = nil
	l.connected(l.awaits)
	delete(l.manager.listeners, listener)
	for e := l.requests.Pop(); e != nil; e = l.requests.Pop() {
		_ = e.Value.Reject(nil) // it may have expired
		e.Value.err = errListenerClosed
	}
	if err := listener.Close(); err != nil {
		return fmt.Errorf("rdma: close %v: %w", l, err)
	}
	return nil
}

// errNotByAddress refuses addresses for UC: librdmacm does not make such connections.
var errNotByAddress = fmt.Errorf("%w: UC connections cannot be made by address; exchange descriptors instead, with Export and Connect", ErrNotSupported)

// connected counts n connections that have become Ready, or that the context no longer waits
// for.
func (l *Listener) connected(n int) {
	if l.awaits == 0 {
		return
	}
	if l.awaits -= min(n, l.awaits); l.awaits == 0 {
		l.manager.core.awaited--
		l.manager.core.wake()
	}
}

var errListenerClosed = errors.New("the listener was closed")

// The largest private data of each message, in bytes (IBTA 12.6, 12.11, annex A11).
const (
	maxDialData   = 56
	maxAcceptData = 196
	maxRejectData = 148

	maxDisconnectData = 220

	maxResolveData = 180
	maxAnswerData  = 136
)

// ConnectRequest is a peer's request for a connection, until it is accepted or rejected.
// It belongs to the goroutine that drives the engine.
type ConnectRequest struct {
	listener *Listener
	id       verbs.CMID   // nil: answered, or over
	prepared *acceptedEnd // nil: Prepare was not called
	param    verbs.CMParam
	local    netip.AddrPort
	remote   netip.AddrPort
	err      error                      // why it can no longer be accepted
	open     fifo.Node[*ConnectRequest] // among those of the listener that are not answered
	place    fifo.Node[*ConnectRequest] // among those that wait for a free connection
}

// Listener is the listener that the request came to.
func (q *ConnectRequest) Listener() *Listener { return q.listener }

// PrivateData is what the peer's program sent. The message does not carry its length: the data
// is 56 bytes long, padded with zeroes. The program may keep it.
func (q *ConnectRequest) PrivateData() []byte { return q.param.PrivateData }

// LocalAddr is the address and port that the peer has dialled.
func (q *ConnectRequest) LocalAddr() netip.AddrPort {
	if q.id != nil {
		q.local = q.id.LocalAddr()
	}
	return q.local
}

// RemoteAddr is the peer's address and port. The peer chose the port.
func (q *ConnectRequest) RemoteAddr() netip.AddrPort {
	if q.id != nil {
		q.remote = q.id.RemoteAddr()
	}
	return q.remote
}

// String names the request.
func (q *ConnectRequest) String() string {
	return fmt.Sprintf("request of %v for a connection with %v", q.RemoteAddr(), q.LocalAddr())
}

// Err is why the request can no longer be accepted: the peer has given up, or the
// listener was closed. It is nil until then, and after Accept and Reject.
func (q *ConnectRequest) Err() error { return q.err }

// checkOpen fails unless the request can be answered.
func (q *ConnectRequest) checkOpen(op string) error {
	m := q.listener.manager
	switch {
	case q.err != nil:
		return fmt.Errorf("rdma: %s the %v: %w: %w", op, q, ErrNotReady, q.err)
	case q.id == nil || m.cm == nil:
		return fmt.Errorf("rdma: %s the %v: %w: the request was answered before", op, q, ErrNotReady)
	}
	return m.core.control.Owned(op)
}

// finish ends the request.
func (q *ConnectRequest) finish(err error) {
	q.LocalAddr()
	q.RemoteAddr()
	q.listener.requests.Remove(&q.open)
	q.listener.manager.waiting.Remove(&q.place)
	q.id, q.err = nil, err
}
