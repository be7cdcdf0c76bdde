package rdma

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/verbena-rdma/verbena/internal/quota"
	"github.com/verbena-rdma/verbena/rdma/internal/life"
	"github.com/verbena-rdma/verbena/verbs"
)

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
	c, ok := q.listener.manager.owner.(*Connections)
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
	q.listener.manager.closeID(id)
	if err != nil {
		return fmt.Errorf("rdma: reject the %v: %w", q, err)
	}
	return nil
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
	q.listener.manager.closeID(id)
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

// request implements queuePairs: the request is accepted when a connection is free.
func (c *Connections) request(q *ConnectRequest) {
	q.place.Value = q
	c.manager.waiting.Push(&q.place)
	c.retryWaiting = true
}

// acceptable reports whether acceptWaiting may have work.
func (c *Connections) acceptable() bool {
	return c.retryWaiting && c.manager.waiting.Len() > 0 && c.hasRoom() && c.phase == phaseUp
}

// nextAdmissible removes the first waiting request of an address that may have another unconfirmed
// connection, or returns nil.
func (c *Connections) nextAdmissible() *ConnectRequest {
	m := &c.manager
	places := m.awaitingRTU.Taken() + len(c.free) + c.set.MaxConnections - len(c.slots)
	for e := m.waiting.Front(); e != nil; e = e.Next() {
		if m.awaitingRTU.Fits(quota.Network(e.Value.remote.Addr()), places) {
			m.waiting.Remove(e)
			return e.Value
		}
	}
	c.retryWaiting = false
	return nil
}

// acceptWaiting accepts the requests of listeners without OnRequest, in the order of arrival,
// while connections are free. An address gets only as many that it has not confirmed as are free,
// so one address alone leaves half of them. acceptWaiting returns how many it handled.
func (c *Connections) acceptWaiting() (n int) {
	for ; c.acceptable(); n++ {
		q := c.nextAdmissible()
		if q == nil {
			break
		}
		if _, err := q.accept(AcceptConfig{PrivateData: q.listener.cfg.PrivateData}, true); err != nil {
			c.control.Log().Warn().Err(err).Msg("failed to accept a connection")
			_ = q.Reject(nil)
		}
	}
	return n
}
