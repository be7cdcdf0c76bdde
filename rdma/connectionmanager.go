package rdma

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/optional"
	"github.com/verbena-rdma/verbena/internal/quota"
	"github.com/verbena-rdma/verbena/rdma/internal/dialling"
	"github.com/verbena-rdma/verbena/rdma/internal/helper"
	"github.com/verbena-rdma/verbena/rdma/internal/life"
	"github.com/verbena-rdma/verbena/verbs"
)

// connectionManager is the part of a context that uses the connection manager of its device, opened by the
// first Listen or Dial of a run. Events come on goroutines of the device, and results of name
// resolution on those of resolvers; both are handled on the engine's.
type connectionManager struct {
	passive
	core        *core
	helpers     *helper.Pool
	reports     *reports
	owner       requestTaker
	cm          verbs.CM // nil: not opened yet
	listeners   map[verbs.CMListener]*Listener
	ids         map[verbs.CMID]idOwner
	groups      map[verbs.CMMulticast]*MulticastGroup
	waiting     fifo.List[*ConnectRequest] // to be accepted when a connection is free
	awaitingRTU quota.Places[netip.Addr]   // accepted connections that the peers have not confirmed, by the peer's quota.Network
	limiter     dialling.Limiter

	pending   atomic.Bool
	mu        sync.Mutex
	queued    []func() // to be run on the engine's goroutine
	resolvers sync.WaitGroup
}

// idOwner is the object that an ID of the connection manager belongs to.
type idOwner interface {
	// event handles an event of the ID, on the engine's goroutine.
	event(e *verbs.CMEvent)
}

// use opens the device's connection manager.
func (m *connectionManager) use() error {
	if m.cm != nil {
		return nil
	}
	c := m.core
	dev, ok := c.dev.(verbs.CMDevice)
	if !ok {
		return fmt.Errorf("%w: %s has no connection manager; exchange descriptors instead, with Export and Connect", ErrNotSupported, c.dev.Name())
	}
	cm, err := dev.OpenCM(func(e verbs.CMEvent) { m.runOnEngine(func() { m.event(&e) }) })
	if err != nil {
		return fmt.Errorf("open the connection manager of %s: %w", c.dev.Name(), err)
	}
	m.cm = cm
	m.listeners, m.ids = make(map[verbs.CMListener]*Listener), make(map[verbs.CMID]idOwner)
	m.groups = make(map[verbs.CMMulticast]*MulticastGroup)
	return nil
}

// shut closes the device's connection manager on a helper, since it waits for answers of peers.
// Later events find no ID.
func (m *connectionManager) shut() {
	cm := m.cm
	for m.waiting.Pop() != nil {
	}
	m.cm, m.listeners, m.ids, m.groups = nil, nil, nil, nil
	m.limiter.Clear()
	if cm == nil {
		return
	}
	m.helpers.Run(func() func() {
		err := cm.Close()
		m.resolvers.Wait() // they have been cancelled
		return func() {
			if err != nil {
				m.core.control.Log().Warn().Err(err).Msg("failed to close the connection manager")
			}
		}
	})
}

// stop closes the listeners, and rejects the requests that have not been answered.
func (m *connectionManager) stop() {
	byAddr := func(a, b *Listener) int { return a.addr.Compare(b.addr) }
	for _, l := range slices.SortedFunc(maps.Values(m.listeners), byAddr) {
		_ = l.close()
	}
}

// runOnEngine makes f run on the engine's goroutine. It may be called on any goroutine.
func (m *connectionManager) runOnEngine(f func()) {
	m.mu.Lock()
	m.queued = append(m.queued, f)
	m.mu.Unlock()
	m.pending.Store(true)
	m.core.wake()
}

// busy implements part.
func (m *connectionManager) busy() bool { return m.pending.Load() }

// work implements part: it runs the functions added so far.
func (m *connectionManager) work() int {
	if !m.pending.Load() {
		return 0
	}
	m.pending.Store(false)
	m.mu.Lock()
	list := m.queued
	m.queued = nil
	m.mu.Unlock()
	n := 0
	defer func() { // a function of the program has panicked: the others are for the next pass
		if n < len(list) {
			m.mu.Lock()
			m.queued = append(list[n:], m.queued...)
			m.mu.Unlock()
			m.pending.Store(true)
		}
	}()
	for n < len(list) {
		n++
		list[n-1]()
		m.core.control.Yield() // it may have called the program
	}
	return n
}

func (m *connectionManager) event(e *verbs.CMEvent) {
	if e.Multicast != nil {
		if g := m.groups[e.Multicast]; g != nil {
			g.event(e)
		}
		return
	}
	switch owner := m.ids[e.ID]; {
	case e.Type == verbs.CMConnectRequest:
		m.request(e)
	case owner != nil:
		owner.event(e)
	}
}

// request gives a request to its listener.
func (m *connectionManager) request(e *verbs.CMEvent) {
	l := m.listeners[e.Listener]
	if l == nil { // it was closed meanwhile
		_ = e.ID.Reject(nil)
		_ = e.ID.Close()
		return
	}
	q := &ConnectRequest{listener: l, id: e.ID, param: e.Param}
	m.ids[e.ID] = q
	q.open.Value = q
	l.requests.Push(&q.open)
	m.core.control.Log().Debug().Stringer("listener", l).Stringer("peer", q.RemoteAddr()).Msg("connection requested")
	if l.cfg.OnRequest == nil {
		m.owner.request(q)
		return
	}
	m.reports.add(func() {
		if q.id != nil { // the peer has not given up meanwhile
			l.cfg.OnRequest(q)
		}
	})
}

// closeID gives back an ID.
func (m *connectionManager) closeID(id verbs.CMID) {
	if id == nil || m.cm == nil {
		return
	}
	delete(m.ids, id)
	if err := id.Close(); err != nil {
		m.core.control.Log().Debug().Err(err).Msg("failed to close an ID of the connection manager")
	}
}

// cmEnd is the establishment of a connection by the connection manager, at either end, once an
// ID is known. Messages of the connection manager serve as ready signal and disconnect notice.
type cmEnd struct {
	conn *Connection
	id   verbs.CMID // nil: not yet, or no longer
	// disconnectData is DialConfig.DisconnectData; it may be nil.
	disconnectData func(conn *Connection) []byte
	told           bool // the peer has been told that this end closes
}

// attributes are the attributes that the connection manager wants the queue pair brought up
// with.
func (e *cmEnd) attributes() (verbs.QPAttr, error) {
	conn, s := e.conn, e.conn.ctx.set
	attr, _, err := e.id.Attr(verbs.QPReadyToReceive)
	if err != nil {
		return attr, err
	}
	if s.Path.MTU != 0 && attr.PathMTU > s.Path.MTU {
		return attr, fmt.Errorf("%w: Config.Path.MTU is %d, but the connection manager has agreed on a path MTU of %d, which the network interface allows; %s, or exchange descriptors",
			ErrRange, s.Path.MTU, attr.PathMTU, conn.lowerMTUAdvice(fmt.Sprintf("to %d", s.Path.MTU)))
	}
	rts, _, err := e.id.Attr(verbs.QPReadyToSend)
	if err != nil {
		return attr, err
	}
	attr.SQPSN, attr.MaxInitReadAtomic = rts.SQPSN, rts.MaxInitReadAtomic
	attr.MinRNRTimer, attr.Timeout, attr.RetryCount, attr.RNRRetry = minRNRTimer, s.timeout, retryCount, s.rnrRetry
	s.putPathFields(&attr.Address)
	attr.MaxDestReadAtomic = min(attr.MaxDestReadAtomic, s.destReads) // the peer may ask for more
	attr.MaxInitReadAtomic = min(attr.MaxInitReadAtomic, s.initReads)
	conn.path.mtu, conn.path.maxReads = attr.PathMTU, attr.MaxInitReadAtomic
	conn.peer.gid, conn.peer.qpn = attr.Address.DGID, attr.DestQPN
	conn.publish()
	return attr, nil
}

// param is what this end's message tells the peer.
func (e *cmEnd) param(privateData []byte) verbs.CMParam {
	c, s := e.conn.ctx, e.conn.ctx.set
	return verbs.CMParam{
		QPN: e.conn.lane.Num(), PrivateData: privateData,
		ResponderResources: s.destReads, InitiatorDepth: s.initReads,
		RetryCount: retryCount, RNRRetryCount: s.rnrRetry, SRQ: c.receives.SRQ() != nil,
	}
}

// event handles what happens to a connection once it is established.
func (e *cmEnd) event(ev *verbs.CMEvent) {
	conn := e.conn
	switch ev.Type {
	case verbs.CMDisconnected:
		if conn.state() == Connecting && conn.lane.IsUp() {
			conn.ready() // it was Ready for a moment
		}
		e.disconnected(ev)
	case verbs.CMAddressChanged:
		conn.fail(fmt.Errorf("%w: the local address %v has moved to another device; connect again", ErrDevice, e.id.LocalAddr().Addr()))
	case verbs.CMDeviceRemoved:
		conn.fail(fmt.Errorf("%w: %s was removed", ErrDevice, conn.ctx.dev.Name()))
	}
}

// disconnected handles the event that the peer has closed the connection.
func (e *cmEnd) disconnected(ev *verbs.CMEvent) {
	e.conn.disconnectData = ev.Param.PrivateData
	e.conn.publish()
	e.conn.ctx.peerDisconnected(e.conn, life.Left)
}

// handle implements establishment: none of the events is for it.
func (e *cmEnd) handle(event) {}

// polls implements establishment: the device reports what the peer does.
func (e *cmEnd) polls() bool { return false }

// tell implements establishment.
func (e *cmEnd) tell() {
	conn, now := e.conn, e.conn.ctx.host.Now()
	if e.disconnect() {
		conn.do(conn.life.Told(now))
	} else {
		conn.do(conn.life.Untold(now))
	}
}

// disconnect tells the peer that this end closes, once, and reports whether the peer is told.
func (e *cmEnd) disconnect() bool {
	if e.told || e.id == nil || e.conn.ctx.manager.cm == nil {
		return e.told
	}
	var err error
	f := e.disconnectData
	e.disconnectData = nil // if it panics, the peer is told without it, later
	if id, ok := e.id.(optional.DisconnectDataCMID); ok && f != nil {
		data := f(e.conn)
		err = id.DisconnectWith(data[:min(len(data), maxDisconnectData)])
	} else {
		err = e.id.Disconnect()
	}
	if err != nil {
		e.disconnectData = f
	}
	if err != nil && !errors.Is(err, verbs.ErrState) { // it was not established, or is going down already
		e.conn.ctx.control.Log().Debug().Err(err).Stringer("connection", e.conn).Msg("failed to disconnect")
	}
	e.told = err == nil
	return e.told
}

// peer implements establishment: the device may know that the peer ends the connection, and not
// have reported it.
func (e *cmEnd) peer() life.Peer {
	id, ok := e.id.(optional.HeldDisconnectCMID)
	if ok && e.conn.ctx.manager.cm != nil && id.DisconnectHeld() {
		return life.Leaving
	}
	return life.Unknown
}

// release implements establishment.
func (e *cmEnd) release() {
	e.conn.ctx.manager.closeID(e.id)
	e.id = nil
}

// disconnectMethod implements establishment.
func (e *cmEnd) disconnectMethod() life.DisconnectMethod {
	if e.conn.state() == Ready {
		return life.ByCM
	}
	return life.Abort
}

// queuePairShut implements establishment.
func (e *cmEnd) queuePairShut() { e.disconnect() }
