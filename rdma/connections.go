package rdma

import (
	"fmt"
	"slices"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/quota"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/verbs"
)

// Connections is a context of connections, and of the tasks that run on them. An engine
// (package pe) drives it. The transport service is RC or UC: Config.Transport.
type Connections struct {
	base
	shared Pool

	onConnection func(*Connection, ConnectionState, error)
	watchers     []*connectionWatcher // replaced as a whole

	// The fields below belong to one run, from Start to Idle.
	slots         []*Connection // nil: free; it grows up to MaxConnections
	free          []int         // slots
	byQPN         map[uint32]*Connection
	last          *Connection        // found last in byQPN
	windows       map[uint32]*Window // by windowTag
	serial        uint64
	usable        int                    // connections known to the program that are Exported, Connecting or Ready
	closedInPlace int                    // connections that are Closed and still have their places
	ending        fifo.List[*Connection] // to be destroyed when their completions have been handled, in the order of that
	toRefill      fifo.List[*Connection] // with room in receive queues of their own
	written       writtenWords
	retryWaiting  bool      // acceptWaiting may find a request, since one came or a place became free
	readyWords    *mmap.Map // words that peers write ready signals and disconnect notices to, by slot

	endsWithLast bool  // the last connection was closed, and EndWithLastConnection is set
	ended        bool  // a connection that counts (not unaccepted) has ended
	lastFailure  error // why the last of these connections failed; nil: it was closed
	interrupted  error // the context then fails with it; nil: it stops
}

// New makes a context of connections on an open device. It checks the whole configuration.
// Until Start the context takes nothing from the device but its attributes. Errors match
// ErrInvalid, ErrRange, ErrNotSupported and ErrGID, or are the device's or those of
// pe.Engine.Connect.
func New(dev verbs.Device, cfg Config) (*Connections, error) {
	set, err := resolve(dev, cfg, nil)
	if err != nil {
		return nil, fmt.Errorf("rdma: make a context: %w", err)
	}
	c := &Connections{}
	c.init(dev, set, c)
	c.written.wake = c.wake
	if cfg.Engine != nil {
		if err := cfg.Engine.Connect(c); err != nil {
			return nil, fmt.Errorf("rdma: make a context: %w", err)
		}
	}
	return c, nil
}

// Config returns the configuration with every default filled in and every time rounded to
// the one in effect. Queue sizes follow from the pools made so far; GIDIndex and MTU are those
// of the port at present.
func (c *Connections) Config() Config { return c.config() }

// List returns the connections that are not Closed, Failed ones included,
// oldest first. It allocates.
func (c *Connections) List() []*Connection {
	c.control.Check("list the connections")
	var list []*Connection
	for _, conn := range c.slots {
		if conn != nil && conn.state != Closed {
			list = append(list, conn)
		}
	}
	sortBySerial(list)
	return list
}

// OnConnection sets the function that is called when a connection becomes
// Connecting, Ready, Failed (with the reason) or Closed (with ErrPeerClosed if the
// peer closed it, otherwise with nil). Closed is reported when nothing of the
// connection is left at the device, and all of its tasks have come back. The function
// runs on the engine's goroutine, inside Progress, never inside another callback, and
// replaces the previous one; nil sets none. In it, connections may be closed and
// exported, and tasks submitted.
func (c *Connections) OnConnection(f func(conn *Connection, state ConnectionState, err error)) {
	c.control.Check("set the function for connections")
	c.onConnection = f
}

// connectionWatcher is a function given to WatchConnections.
type connectionWatcher struct {
	f func(*Connection, ConnectionState, error)
}

// WatchConnections adds a function that is called like that of OnConnection, and after
// it, until stop is called. It is for packages that build on contexts; the function of
// OnConnection is the program's. It belongs to the goroutine that drives the engine.
func (c *Connections) WatchConnections(f func(conn *Connection, state ConnectionState, err error)) (stop func()) {
	c.control.Check("watch the connections")
	w := &connectionWatcher{f}
	c.watchers = append(slices.Clip(c.watchers), w)
	return func() {
		w.f = nil // a call may be about to begin
		c.watchers = slices.DeleteFunc(slices.Clone(c.watchers), func(o *connectionWatcher) bool { return o == w })
	}
}

// connectionOf finds the connection of a queue pair.
func (c *Connections) connectionOf(qpn uint32) *Connection {
	if c.last == nil || c.last.lane.Num() != qpn {
		c.last = c.byQPN[qpn]
	}
	return c.last
}

// queueReport queues a report to the program about a connection.
func (c *Connections) queueReport(conn *Connection, state ConnectionState, err error) {
	c.reports.Push(report{conn: conn, state: state, err: err})
	event := c.set.Log.Debug()
	if state == Failed {
		event = c.set.Log.Warn().Err(err)
	}
	event.Str("context", c.set.Name).Stringer("connection", conn).Stringer("state", state).Msg("connection changed")
	c.poke()
}

// open implements service.
func (c *Connections) open() (err error) {
	s := c.set
	c.usable, c.closedInPlace, c.endsWithLast, c.interrupted = 0, 0, false, nil
	c.ended, c.lastFailure = false, nil
	c.byQPN = make(map[uint32]*Connection)
	switch {
	case c.receiveTotal == 0: // there are none, or each connection has its own
	case s.receivesShared:
		if c.srq, err = s.PD.CreateSRQ(verbs.SRQInit{MaxWR: c.recvDepth, MaxSGE: s.MaxRecvSGE, Poller: c.Engine()}); err != nil {
			return fmt.Errorf("create a shared receive queue of %d receives on %s: %w", c.recvDepth, c.dev.Name(), err)
		}
		c.recvQueue = c.srq
	case c.recvDepth < s.MaxConnections:
		return fmt.Errorf("%w: the device takes %d receives at a time, which is less than Config.MaxConnections, %d; connections of %v on %s have no shared receive queue, so each needs a receive of its own: use larger pools of receives, or more buffers in Receive, and leave Config.RecvQueueSize at 0 or raise it, or lower Config.MaxConnections",
			ErrRange, c.recvDepth, s.MaxConnections, s.Transport, c.dev.Name())
	}
	return c.openReadyWords()
}

// release implements service.
func (c *Connections) release() []error {
	err := c.closeMemory(c.readyWords)
	c.readyWords = nil
	for c.toRefill.Pop() != nil {
	}
	for c.ending.Pop() != nil {
	}
	c.slots, c.free, c.byQPN, c.last = nil, nil, nil, nil
	return []error{err}
}

// beforePoll implements service: it handles words that peers have written.
func (c *Connections) beforePoll() int {
	if c.written.pending.Load() {
		return c.written.handle()
	}
	return 0
}

// afterPoll implements service.
func (c *Connections) afterPoll() int { return 0 }

// afterDrain implements service: it destroys connections, accepts waiting requests and sends
// waiting dials.
func (c *Connections) afterDrain() int {
	n := c.destroyRetired() + c.acceptWaiting() + c.manager.resumeDials()
	if c.usable > 0 && c.startable() {
		c.control.Started() // before the program learns that connections are ready, so that it can submit tasks
	}
	return n
}

// notify implements service.
func (c *Connections) notify(r report) {
	if c.onConnection != nil {
		c.onConnection(r.conn, r.state, r.err)
	}
	for _, w := range c.watchers {
		if w.f != nil {
			w.f(r.conn, r.state, r.err)
		}
	}
	if r.state == Failed && (r.conn.closedOnFailure || r.conn.unaccepted()) {
		r.conn.close()
	}
}

// changeState implements service: it stops a context that is to end with its last connection.
// It runs after the callbacks for connections, in which the program may stop the context, or
// export another connection.
func (c *Connections) changeState() {
	switch {
	case !c.stoppable():
	case c.interrupted != nil:
		c.control.Fail(c.interrupted)
	default:
		_ = c.Stop() // legal here in every state
	}
	c.endsWithLast = false
}

// stoppable reports whether the context is to stop because its last connection was closed.
func (c *Connections) stoppable() bool {
	return c.endsWithLast && c.usable == 0 && c.phase == phaseUp
}

// busy implements service.
func (c *Connections) busy() bool {
	return c.written.pending.Load() || c.acceptable() || c.manager.resumable.Len() > 0 ||
		c.ending.Len() > 0 || c.stoppable()
}

// stop implements service.
func (c *Connections) stop() {
	for _, conn := range c.slots {
		if conn != nil {
			conn.close()
			conn.tryDestroy() // it need not wait for its last receive any more
		}
	}
}

// hasRoom reports whether another connection may exist.
func (c *Connections) hasRoom() bool { return len(c.free) > 0 || len(c.slots) < c.set.MaxConnections }

// fullAdvice says what takes the places when there is no room.
func (c *Connections) fullAdvice() string {
	if c.closedInPlace == 0 {
		return fmt.Sprintf("all %d connections are in use; close one, or raise Config.MaxConnections", c.set.MaxConnections)
	}
	return fmt.Sprintf("%d of %d places are held by connections that are closing; wait for OnConnection to report one Closed, or raise Config.MaxConnections",
		c.closedInPlace, c.set.MaxConnections)
}

// nextSlot is the slot of the next connection, which takes it with occupy.
func (c *Connections) nextSlot() int {
	if n := len(c.free); n > 0 {
		return c.free[n-1]
	}
	return len(c.slots)
}

func (c *Connections) occupy(conn *Connection) {
	if n := len(c.free); n > 0 {
		c.free = c.free[:n-1]
		c.slots[conn.slot] = conn
		return
	}
	c.slots = append(c.slots, conn)
}

func (c *Connections) vacate(conn *Connection) {
	c.closedInPlace--
	c.slots[conn.slot] = nil
	c.free = append(c.free, conn.slot)
	c.retryWaiting = true
}

// drained implements service.
func (c *Connections) drained() bool { return len(c.free) == len(c.slots) }

// fail implements service.
func (c *Connections) fail(err error) {
	for _, conn := range c.slots {
		if conn != nil {
			conn.fail(err)
		}
	}
}

// giveUp implements service.
func (c *Connections) giveUp() {
	for _, conn := range c.slots {
		if conn != nil {
			conn.shut() // even one that is closing
			conn.lane.GiveUp()
		}
	}
}

// portChanged implements service: connections keep their address.
func (c *Connections) portChanged() {}

// eventQueued implements service.
func (c *Connections) eventQueued(ev *verbs.Event) {
	if conn := c.byQPN[ev.QPN]; conn != nil && ev.Type == verbs.EventPeerGone {
		conn.peerDead = true
	}
}

// event implements service.
func (c *Connections) event(ev *verbs.Event) int {
	conn := c.byQPN[ev.QPN]
	if conn == nil {
		return 0
	}
	switch ev.Type {
	case verbs.EventQPLastWQEReached:
		conn.lastReceive = true
		conn.tryDestroy()
	case verbs.EventCommEstablished:
		if conn.state == Connecting {
			conn.establishment.messageReceived()
		}
	case verbs.EventPeerGone:
		conn.fail(fmt.Errorf("%w: %w", ErrRetryExceeded, ErrPeerDead))
	case verbs.EventQPFatal:
		conn.fail(fmt.Errorf("%w: %v", ErrDevice, ev.Type))
	case verbs.EventQPRequestError:
		conn.failDespiteDisconnect(fmt.Errorf("%w as invalid: a read or an atomic needs mmap.RemoteRead or RemoteAtomic in Config.Permissions, which is %v; a message must not be longer than the receive%s", ErrPeerRefused, c.set.Permissions, conn.mtuMismatchAdvice(verbs.StatusRemoteInvalidRequest)))
	case verbs.EventQPAccessError:
		conn.failDespiteDisconnect(fmt.Errorf("%w because of its key, bounds or permission; check the memory descriptor that the peer uses", ErrPeerRefused))
	}
	return 1
}

// eventsLost implements service.
func (c *Connections) eventsLost() int {
	n := 0
	for _, conn := range c.slots {
		if conn == nil || conn.state != Ready && conn.state != Connecting || conn.transition.running {
			continue
		}
		if attr, err := conn.lane.QP().Query(); err == nil && attr.State == verbs.QPError {
			conn.fail(fmt.Errorf("%w: the queue pair is in the error state", ErrDevice))
			n++
		}
	}
	return n
}

// peerDisconnected closes a connection whose peer has disconnected. Earlier failures have been
// reported by now.
func (c *Connections) peerDisconnected(conn *Connection) {
	if conn.peerDisconnected || !conn.state.usable() && !conn.closing() {
		return
	}
	conn.peerDisconnected = true
	c.takeEvents()
	c.deferEvent(deferredEvent{disconnected: conn})
}

// received implements service.
func (c *Connections) received(r *receive, conn *Connection, wc *verbs.WC) {
	if conn == nil {
		conn = c.connectionOf(wc.QPN)
	}
	if conn != nil && !c.messageFrom(conn) {
		c.recvWaiting.Push(&r.place) // for a message of another connection
		return
	}
	r.owner.arrived(c.arrivalFrom(conn, wc))
}

// messageFrom notes that a message has come from a connection, and reports whether the program
// gets it.
func (c *Connections) messageFrom(conn *Connection) bool {
	conn.peerAlive = true
	if conn.state == Connecting {
		conn.establishment.messageReceived()
		if !conn.state.usable() {
			return false
		}
	}
	if c.startable() {
		c.control.Started() // before the program sees the message
	}
	return true
}

// arrivalFrom is the arrival of a message from a connection.
func (c *Connections) arrivalFrom(conn *Connection, wc *verbs.WC) *arrival {
	a := c.arrivalOf(wc)
	a.conn = conn
	if wc.InvalidatedRKey != 0 {
		a.invalidated = c.invalidated(wc.InvalidatedRKey)
	}
	return a
}

// receivedUnsolicited implements service: RC and UC have no such messages.
func (c *Connections) receivedUnsolicited(*verbs.WC) {}

// receiveFailed implements service.
func (c *Connections) receiveFailed(r *receive, conn *Connection, wc *verbs.WC) {
	if conn != nil && wc.Status == verbs.StatusFlushed {
		c.recvWaiting.Push(&r.place) // for a message of another connection
		conn.failedTask(wc.Status, nil)
		return
	}
	if conn == nil {
		conn = c.connectionOf(wc.QPN)
	}
	err := failedReceive(r, conn, wc)
	if conn != nil {
		conn.failedTask(wc.Status, err)
	}
	if wc.Status == verbs.StatusFlushed {
		err.Cause = c.causeOf(conn)
	}
	r.owner.failed(conn, err)
}

// appendHeader implements service: messages come without a header.
func (c *Connections) appendHeader(sgl []verbs.SGE, _ *receive) []verbs.SGE { return sgl }

// request implements service: the request is accepted when a connection is free.
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
			c.set.Log.Warn().Err(err).Str("context", c.set.Name).Msg("failed to accept a connection")
			_ = q.Reject(nil)
		}
	}
	return n
}
