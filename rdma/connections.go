package rdma

import (
	"fmt"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/quota"
	"github.com/verbena-rdma/verbena/rdma/internal/buffers"
	"github.com/verbena-rdma/verbena/rdma/internal/life"
	"github.com/verbena-rdma/verbena/rdma/internal/receiving"
	"github.com/verbena-rdma/verbena/verbs"
)

// Connections is a context of connections, and of the tasks that run on them. An engine
// (package pe) drives it. The transport service is RC or UC: Config.Transport.
type Connections struct {
	parts

	onConnection func(*Connection, ConnectionState, error)
	watchers     []*connectionWatcher // replaced as a whole

	// The fields below belong to one run, from Start to Idle.
	slots         []*Connection // nil: free; it grows up to MaxConnections
	free          []int         // slots
	byQPN         map[uint32]*Connection
	last          *Connection        // found last in byQPN
	windows       map[uint32]*Window // by windowTag
	serial        uint64
	started       time.Time              // origin of the times of keepalives
	usable        int                    // connections known to the program that are Exported, Connecting or Ready
	closedInPlace int                    // connections that are Closed and still have their places
	passing       fifo.List[*Connection] // in the phase life.Passing, in the order in which they are to be destroyed
	written       writtenWords
	retryWaiting  bool // acceptWaiting may find a request, since one came or a place became free
	// readyWords are the words that peers write ready signals and disconnect notices to, by slot.
	// Peers do not get its key: each gets the key of a region of one word.
	readyWords buffers.Buffers

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
	c.init(dev, set, c, c, &c.written, &lastConnection{c: c})
	c.written.wake, c.events.taken = c.wake, c.eventTaken
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
		if conn != nil && conn.state() != Closed {
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
	c.reports.add(func() { c.notify(conn, state, err) })
	event := c.control.Log().Debug()
	if state == Failed {
		event = c.control.Log().Warn().Err(err)
	}
	event.Stringer("connection", conn).Stringer("state", state).Msg("connection changed")
}

// open implements part.
func (c *Connections) open() error {
	c.usable, c.closedInPlace, c.endsWithLast, c.interrupted = 0, 0, false, nil
	c.ended, c.lastFailure = false, nil
	c.byQPN, c.started = make(map[uint32]*Connection), c.host.Now()
	return c.readyWords.Open(c.set.PD, c.set.MaxConnections, wordSize, wordSize)
}

// close implements part.
func (c *Connections) close() error {
	err := c.readyWords.Close(c.kept != nil)
	for c.passing.Pop() != nil {
	}
	c.slots, c.free, c.byQPN, c.last = nil, nil, nil, nil
	return err
}

// work implements part: it ends connections, accepts waiting requests and sends waiting dials.
func (c *Connections) work() int {
	n := c.lanes.end() + c.destroyRetired() + c.acceptWaiting() + c.manager.limiter.Resume()
	if c.usable > 0 {
		c.startIfReady()
	}
	return n
}

// busy implements part.
func (c *Connections) busy() bool {
	return c.acceptable() || c.manager.limiter.Busy() || c.passing.Len() > 0
}

// notify calls the program for a connection that has changed.
func (c *Connections) notify(conn *Connection, state ConnectionState, err error) {
	if state == Failed {
		defer conn.failureReported() // a function of the program may panic
	}
	if c.onConnection != nil {
		c.onConnection(conn, state, err)
	}
	for _, w := range c.watchers {
		if w.f != nil {
			w.f(conn, state, err)
		}
	}
}

// failureReported closes a failed connection that the program does not know of.
func (conn *Connection) failureReported() {
	if conn.accepted != nil && conn.accepted.closedOnFailure || conn.unaccepted() {
		conn.close()
	}
}

// lastConnection is the part that stops a context which is to end with its last connection. It
// works after the callbacks for connections, in which the program may stop the context, or
// export another connection.
type lastConnection struct {
	passive
	c *Connections
}

// busy implements part.
func (l *lastConnection) busy() bool {
	return l.c.endsWithLast && l.c.usable == 0 && l.c.phase == phaseUp
}

// work implements part.
func (l *lastConnection) work() int {
	c := l.c
	switch {
	case !l.busy():
	case c.interrupted != nil:
		c.control.Fail(c.interrupted)
	default:
		_ = c.Stop() // legal here in every state
	}
	c.endsWithLast = false
	return 0
}

// stop implements queuePairs.
func (c *Connections) stop(reason error) {
	for _, conn := range slices.Backward(c.slots) {
		if conn != nil {
			defer conn.stop(reason) // a function of the program may panic: the others end all the same
		}
	}
}

// stop ends the connection because its context stops, or fails for a reason.
func (conn *Connection) stop(reason error) {
	if reason != nil {
		conn.fail(reason)
	} else {
		conn.close()
		conn.do(conn.life.LastReceive()) // it need not wait for its last receive any more
	}
	if c := conn.ctx; c.lanes.Broken() {
		conn.do(conn.life.Abandon(c.host.Now()))
		conn.lane.GiveUp()
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

// gone implements queuePairs.
func (c *Connections) gone() bool { return len(c.free) == len(c.slots) }

// eventTaken notes at once that a peer is dead.
func (c *Connections) eventTaken(ev *verbs.Event) {
	if conn := c.byQPN[ev.QPN]; conn != nil && ev.Type == verbs.EventPeerGone {
		conn.life.Die()
	}
}

// event implements queuePairs.
func (c *Connections) event(ev *verbs.Event) int {
	if ev.Type == eventsLost {
		return c.findFailed()
	}
	conn := c.byQPN[ev.QPN]
	if conn == nil {
		return 0
	}
	switch ev.Type {
	case verbs.EventQPLastWQEReached:
		conn.do(conn.life.LastReceive())
	case verbs.EventCommEstablished:
		if conn.state() == Connecting {
			conn.establishment.handle(event{kind: messageReceived})
		}
	case verbs.EventPeerGone:
		conn.do(conn.life.Abandon(c.host.Now()))
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

// findFailed finds connections whose queue pairs are in error, and returns how many.
func (c *Connections) findFailed() int {
	n := 0
	for _, conn := range c.slots {
		if conn == nil || conn.state() != Ready && conn.state() != Connecting || conn.transition.running {
			continue
		}
		if attr, err := conn.lane.QP().Query(); err == nil && attr.State == verbs.QPError {
			conn.fail(fmt.Errorf("%w: the queue pair is in the error state", ErrDevice))
			n++
		}
	}
	return n
}

// peerDisconnected closes a connection whose peer has disconnected, if that is known and new.
// Earlier failures have been reported by now.
func (c *Connections) peerDisconnected(conn *Connection, known life.Peer) {
	if !conn.life.Learn(known) {
		return
	}
	c.afterCompletions(conn.peerClosed)
}

// received implements queuePairs.
func (c *Connections) received(wc *verbs.WC) {
	t, ok := c.receives.Take(wc)
	if !ok {
		return
	}
	var conn *Connection
	if t.Queue != nil {
		conn = (*Connection)(t.Queue.Owner.(*laneOwner))
	} else {
		conn = c.connectionOf(wc.QPN)
	}
	switch {
	case wc.Status != verbs.StatusSuccess:
		c.receiveFailed(t, conn, wc)
	case conn != nil && !c.messageFrom(conn):
		c.receives.Repost(t) // for a message of another connection
	default:
		receiverOf(t).arrived(t, c.arrivalFrom(conn, wc))
	}
}

// messageFrom notes that a message has come from a connection, and reports whether the program
// gets it.
func (c *Connections) messageFrom(conn *Connection) bool {
	conn.heard()
	if conn.state() == Connecting {
		conn.establishment.handle(event{kind: messageReceived})
		if !conn.state().usable() {
			return false
		}
	}
	c.startIfReady() // before the program sees the message
	return true
}

// arrivalFrom is the arrival of a message from a connection.
func (c *Connections) arrivalFrom(conn *Connection, wc *verbs.WC) *arrival {
	a := c.receives.arrivalOf(wc)
	a.conn = conn
	if wc.InvalidatedRKey != 0 {
		a.invalidated = c.invalidated(wc.InvalidatedRKey)
	}
	return a
}

// receiveFailed handles the completion of a receive that failed.
func (c *Connections) receiveFailed(t receiving.Taken, conn *Connection, wc *verbs.WC) {
	if t.Queue != nil {
		t.Queue.Stop() // the queue pair is in error
	}
	if t.Queue != nil && wc.Status == verbs.StatusFlushed {
		c.receives.Repost(t) // for a message of another connection
		conn.failedTask(wc.Status, nil)
		return
	}
	err := failedReceive(t, conn, wc)
	if conn != nil {
		conn.failedTask(wc.Status, err)
	}
	if wc.Status == verbs.StatusFlushed {
		err.Cause = c.causeOf(conn)
	}
	receiverOf(t).failed(t, conn, err)
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
