package rdma

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/quota"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma/internal/life"
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

// Listener accepts connections of peers that dial an address (rdma_listen(3)). It belongs to
// the goroutine that drives the engine.
type Listener struct {
	ctx      *parts
	cfg      ListenConfig
	listener verbs.CMListener // nil: closed
	addr     netip.AddrPort
	requests fifo.List[*ConnectRequest] // not answered
	awaits   int                        // connections that keep the context in Starting
}

// Listen accepts, through the connection manager, connections of peers that dial an address of
// the device, as in rdma_cm(7). Peers may use this SDK (Dial), or the connection manager of
// the kernel or of an adapter. The address is HOST:PORT. HOST is an IP address, a GID, or
// empty for all addresses of the device; IPv6 addresses and GIDs are in brackets. With port 0
// the manager chooses one. The ports are those of RDMA_PS_TCP, which have nothing to do with
// the ports of TCP.
//
// Accepted connections are Connecting, then Ready, and OnConnection reports them as any other.
// Each takes one of Config.MaxConnections places. A context may have any number of listeners.
// They end with Close, or when the context stops. Accepted connections go on after Close.
//
// A context of UD answers peers that ask for its endpoint (ResolvePeer): at once, or, with
// OnRequest, through ConnectRequest.Answer. Its ports are those of RDMA_PS_UDP.
//
// It is legal in Starting and Running. A context in Starting waits for peers only if
// ListenConfig.Await is set. Listen fails with ErrInvalid for an address that is invalid or
// not the device's, with verbs.ErrInUse if another program listens on the port, and with
// ErrNotSupported on a device without a connection manager.
func (c *parts) Listen(addr string, cfg ListenConfig) (*Listener, error) {
	const op = "listen"
	if err := c.control.Owned(op); err != nil {
		return nil, err
	}
	if err := c.control.Require(op, pe.Starting, pe.Running); err != nil {
		return nil, err
	}
	l, err := c.listen(addr, cfg)
	if err != nil {
		return nil, fmt.Errorf("rdma: listen on %q with context %q: %w", addr, c.set.Name, err)
	}
	return l, nil
}

func (c *parts) listen(text string, cfg ListenConfig) (*Listener, error) {
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
	if err := c.manager.use(); err != nil {
		return nil, err
	}
	l := &Listener{ctx: c, cfg: cfg}
	l.cfg.PrivateData = slices.Clone(cfg.PrivateData)
	if l.listener, err = c.manager.cm.Listen(verbs.CMListen{Addr: netip.AddrPortFrom(addr, port), Type: c.set.Transport, Backlog: cfg.Backlog, MTU: c.set.Path.MTU}); err != nil {
		return nil, err
	}
	l.addr = l.listener.Addr()
	c.manager.listeners[l.listener] = l
	if cfg.Await > 0 && c.State() == pe.Starting {
		l.awaits = cfg.Await
		c.awaited++
	}
	return l, nil
}

// listenAddr returns the address of the device for a host in the address to listen on. The
// unspecified address means all addresses.
func (c *parts) listenAddr(host string) (netip.Addr, error) {
	s := c.set
	if host == "" {
		if own := c.port.IP(); s.port.Chosen() && own.IsValid() {
			return own, nil
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
	return fmt.Sprintf("listener %v of context %q", l.addr, l.ctx.Name())
}

// Close ends the listener, and rejects the requests that have not been answered. Accepted
// connections go on. Closing again does nothing. While another goroutine drives the engine it
// fails with pe.ErrBusy.
func (l *Listener) Close() error {
	if err := l.ctx.control.Owned("close a listener"); err != nil {
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
	delete(l.ctx.manager.listeners, listener)
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
		l.ctx.awaited--
		l.ctx.wake()
	}
}

var errListenerClosed = errors.New("the listener was closed")

// The largest private data of each message, in bytes (IBTA 12.6, annex A11).
const (
	maxDialData   = 56
	maxAcceptData = 196
	maxRejectData = 148

	maxDisconnectData = 220
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

// AcceptConfig says how to accept.
type AcceptConfig struct {
	// PrivateData goes to the peer's program: at most 196 bytes.
	PrivateData []byte
	// OnEstablished is called when the peer has confirmed the acceptance, before the
	// connection is Ready and before any message. It runs on the engine's goroutine, inside
	// Progress. If the connection fails before that, the context closes it by itself, after
	// OnConnection has reported the failure. It does not trigger Config.EndWithLastConnection.
	// Nil: the connection is Ready when the peer has confirmed.
	OnEstablished func(conn *Connection)
}

// Prepare makes the connection before the program accepts or rejects the request, as a program
// of rdma_cm(7) makes the queue pair. Until Accept returns it, the connection is Exported, and
// OnConnection reports nothing of it. If Reject or anything else ends the request, the
// connection is closed, and OnConnection reports only Closed. Prepare is legal where Accept
// is, and fails as Accept does.
func (q *ConnectRequest) Prepare() (*Connection, error) { return q.prepare(false) }

func (q *ConnectRequest) prepare(closedOnFailure bool) (*Connection, error) {
	if err := q.checkOpen("accept"); err != nil {
		return nil, err
	}
	if q.prepared != nil {
		return q.prepared.conn, nil
	}
	c, ok := q.listener.ctx.self.(*Connections)
	if !ok {
		return nil, fmt.Errorf("rdma: accept the %v: %w: the context has an endpoint; call Answer", q, ErrNotSupported)
	}
	end := &acceptedEnd{listener: q.listener, closedOnFailure: closedOnFailure}
	conn, err := c.newConnection(fmt.Sprintf("accept the %v", q), func(conn *Connection) (err error) {
		end.cmEnd = cmEnd{conn: conn, id: q.id}
		conn.establishment, conn.accepted = end, end
		init, _, err := q.id.Attr(verbs.QPInitialized)
		if err != nil {
			return err
		}
		port, _ := q.id.PortGID()
		if err := conn.initialize(port, init.PKeyIndex); err != nil {
			return err
		}
		end.attr, err = end.attributes()
		return err
	})
	if errors.Is(err, verbs.ErrState) { // the peer has given up, which is reported in a moment
		err = fmt.Errorf("%w: %w", ErrNotReady, err)
	}
	if err != nil {
		return nil, err
	}
	end.id = nil // the request keeps it, until Accept
	conn.addrs = [2]netip.AddrPort{q.LocalAddr(), q.RemoteAddr()}
	conn.publish()
	q.prepared = end
	return conn, nil
}

// abandon closes the connection of a request that is not accepted.
func (q *ConnectRequest) abandon() {
	if q.prepared != nil {
		q.prepared.conn.close()
	}
}

// Accept accepts the request, and does not wait. The connection is Connecting, and Ready as
// soon as the peer confirms it. The connection fails if its queue pair cannot be brought up,
// or, with ErrNotReady, if the peer gives up before the acceptance is sent. That may be inside
// this call: the peer of a connection that is closed afterwards finds it made, and then closed.
//
// Accept itself fails with ErrFull while Config.MaxConnections exist (the program may try
// again later), with ErrNotReady if the peer is known to have given up or the listener was
// closed, and with ErrRange if the private data is too long. It is legal once, in Starting and
// Running, in OnRequest or later.
func (q *ConnectRequest) Accept(cfg AcceptConfig) (*Connection, error) { return q.accept(cfg, false) }

func (q *ConnectRequest) accept(cfg AcceptConfig, closedOnFailure bool) (*Connection, error) {
	if err := q.checkOpen("accept"); err != nil {
		return nil, err
	}
	if len(cfg.PrivateData) > maxAcceptData {
		return nil, fmt.Errorf("rdma: accept the %v: %w: the private data has %d bytes; the message holds at most %d", q, ErrRange, len(cfg.PrivateData), maxAcceptData)
	}
	conn, err := q.prepare(closedOnFailure)
	if err != nil {
		return nil, err
	}
	if conn.state() != Exported {
		return nil, fmt.Errorf("rdma: accept the %v: %w: %v is %v", q, ErrNotReady, conn, conn.state())
	}
	c, end := conn.ctx, q.prepared
	end.id, end.accepted, end.onEstablished = q.id, true, cfg.OnEstablished
	c.manager.ids[q.id] = end
	q.finish(nil)
	c.manager.awaitingRTU.Take(quota.Network(conn.addrs[1].Addr()))
	end.counted = true
	conn.connecting()
	if limit := c.set.ConnectTimeout; limit > 0 {
		conn.deadline.Set(c.host.Now().Add(limit))
	}
	privateData := slices.Clone(cfg.PrivateData)
	conn.connectLane(end.attr, func(err error) { end.accept(q, privateData, err) })
	return conn, nil
}

// accept sends the acceptance, when the queue pair is up.
func (e *acceptedEnd) accept(q *ConnectRequest, privateData []byte, err error) {
	if err == nil {
		p := e.param(privateData)
		p.ResponderResources = min(p.ResponderResources, q.param.ResponderResources)
		p.InitiatorDepth = min(p.InitiatorDepth, q.param.InitiatorDepth)
		err = e.id.Accept(p)
		e.answered = err == nil
	}
	switch {
	case errors.Is(err, verbs.ErrState): // the peer has given up, which is reported in a moment
		e.conn.fail(fmt.Errorf("rdma: accept the %v: %w: %w", q, ErrNotReady, err))
	case err != nil:
		e.conn.fail(e.conn.deviceError(err))
	}
}

// Reject rejects the request. The private data, at most 148 bytes, is part of the peer's error
// (verbs.CMError). It is legal once, in OnRequest or later.
func (q *ConnectRequest) Reject(privateData []byte) error {
	if err := q.checkOpen("reject"); err != nil {
		return err
	}
	if len(privateData) > maxRejectData {
		return fmt.Errorf("rdma: reject the %v: %w: the private data has %d bytes; the message holds at most %d", q, ErrRange, len(privateData), maxRejectData)
	}
	id := q.id
	q.finish(nil)
	q.abandon()
	err := id.Reject(privateData)
	q.listener.ctx.manager.closeID(id)
	if err != nil {
		return fmt.Errorf("rdma: reject the %v: %w", q, err)
	}
	return nil
}

// checkOpen fails unless the request can be answered.
func (q *ConnectRequest) checkOpen(op string) error {
	c := q.listener.ctx
	switch {
	case q.err != nil:
		return fmt.Errorf("rdma: %s the %v: %w: %w", op, q, ErrNotReady, q.err)
	case q.id == nil || c.manager.cm == nil:
		return fmt.Errorf("rdma: %s the %v: %w: the request was answered before", op, q, ErrNotReady)
	}
	return c.control.Owned(op)
}

// finish ends the request.
func (q *ConnectRequest) finish(err error) {
	q.LocalAddr()
	q.RemoteAddr()
	q.listener.requests.Remove(&q.open)
	q.listener.ctx.manager.waiting.Remove(&q.place)
	q.id, q.err = nil, err
}

// event implements idOwner: a request that is not answered can only end.
func (q *ConnectRequest) event(e *verbs.CMEvent) {
	if e.Type != verbs.CMFailed && e.Type != verbs.CMDeviceRemoved && e.Type != verbs.CMDisconnected {
		return
	}
	err := e.Err
	if err == nil {
		err = errors.New("the peer gave up")
	}
	id := q.id
	q.finish(err)
	q.abandon()
	q.listener.ctx.manager.closeID(id)
}

// acceptedEnd is the establishment of a connection that a Listener accepts.
type acceptedEnd struct {
	cmEnd
	listener *Listener
	attr     verbs.QPAttr // to bring the queue pair up with
	accepted bool         // the program has accepted
	counted  bool         // in awaitingRTU of the connection manager
	// onEstablished is AcceptConfig.OnEstablished, until it has been called.
	onEstablished func(conn *Connection)
	answered      bool // the acceptance was sent
	established   bool // the peer has confirmed it
	// closedOnFailure: the connection is closed if it fails, since the program does not know of it.
	closedOnFailure bool
}

// confirm notes that the peer has confirmed the connection.
func (e *acceptedEnd) confirm() {
	e.established = true
	e.releasePlace()
}

// releasePlace ends the count of the connection among those that the peer has not confirmed.
func (e *acceptedEnd) releasePlace() {
	if e.counted {
		e.counted = false
		c := e.conn.ctx
		c.manager.awaitingRTU.Release(quota.Network(e.conn.addrs[1].Addr()))
		c.retryWaiting = true
	}
}

// unaccepted reports whether the connection has ended before the program had to know of it, or
// before the program had accepted it and the peer was told. It then does not count as the
// context's last connection.
func (conn *Connection) unaccepted() bool {
	e := conn.accepted
	return e != nil && (e.onEstablished != nil || !e.answered && (e.closedOnFailure || !e.accepted))
}

// event implements idOwner.
func (e *acceptedEnd) event(ev *verbs.CMEvent) {
	conn := e.conn
	switch ev.Type {
	case verbs.CMEstablished:
		e.confirm()
		switch {
		case conn.state() == Connecting:
			conn.ready()
		case conn.life.Phase() == life.Telling:
			e.tell()
		}
	case verbs.CMFailed: // even if a message has made the connection Ready meanwhile
		conn.do(conn.life.Abandon(conn.ctx.host.Now()))
		conn.fail(ev.Err)
	default:
		e.cmEnd.event(ev)
	}
}

// handle implements establishment.
func (e *acceptedEnd) handle(ev event) {
	switch ev.kind {
	case messageReceived: // the peer's message has overtaken the peer's confirmation
		_ = e.id.Received()
		e.confirm()
		e.conn.ready()
	case deadlinePassed:
		e.conn.fail(e.conn.timeoutError(e.conn.ctx.set.ConnectTimeout))
	}
}

// disconnectMethod implements establishment: the peer may have confirmed the acceptance.
func (e *acceptedEnd) disconnectMethod() life.DisconnectMethod {
	if e.answered {
		return life.ByCM
	}
	return life.Abort
}

// tell implements establishment. It is called again when the peer has confirmed the connection: until
// then the peer may begin to use it, so the queue pair serves its requests.
func (e *acceptedEnd) tell() {
	if e.established {
		e.cmEnd.tell()
	}
}

// release implements establishment: the connection is destroyed.
func (e *acceptedEnd) release() {
	e.releasePlace()
	e.cmEnd.release()
}
