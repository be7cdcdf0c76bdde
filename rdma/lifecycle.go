package rdma

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma/internal/life"
	"github.com/verbena-rdma/verbena/verbs"
)

// newConnection makes a connection in the state Exported, with a queue pair in the state
// Reset. setUp does the rest, and sets the establishment. op is for errors.
func (c *Connections) newConnection(op string, setUp func(*Connection) error) (*Connection, error) {
	if err := c.control.Owned(op); err != nil {
		return nil, err
	}
	if err := c.control.Require(op, pe.Starting, pe.Running); err != nil {
		return nil, err
	}
	if !c.hasRoom() {
		return nil, fmt.Errorf("rdma: %s in context %q: %w: %s", op, c.set.Name, ErrFull, c.fullAdvice())
	}
	conn := &Connection{ctx: c, slot: c.nextSlot(), id: c.serial}
	conn.deadline.Init(&c.deadlines.Deadlines, conn.due)
	conn.receives.Owner, conn.destruction.place.Value = (*laneOwner)(conn), conn
	err := conn.openLane()
	if err == nil {
		err = conn.receives.Open(&c.receives.Receives, conn.slot, conn.lane)
	}
	if err == nil {
		err = setUp(conn)
	}
	if err != nil {
		if conn.lane != nil {
			err = errors.Join(err, conn.lane.Close())
			conn.returnReceives()
			err = errors.Join(err, conn.receives.Close(c.kept != nil))
		}
		return nil, fmt.Errorf("rdma: %s in context %q: %w", op, c.set.Name, err)
	}
	c.serial++
	c.occupy(conn)
	c.byQPN[conn.lane.Num()] = conn
	conn.signal.conn = conn
	c.lanes.Add(&conn.signal.send, &conn.signal)
	conn.publish()
	c.usable++
	c.interrupted = nil // another connection follows
	if c.State() == pe.Starting {
		conn.awaited = true
		c.awaited++
	}
	return conn, nil
}

// openLane makes the queue pair.
func (conn *Connection) openLane() (err error) {
	c, s := conn.ctx, conn.ctx.set
	init := verbs.QPInit{Type: s.Transport, SRQ: c.receives.SRQ(), MaxSendSGE: s.sendSGE, MaxInline: s.inline, AdaptiveRetransmission: s.adaptive, SilenceTimeout: s.SilenceTimeout}
	if c.receives.SRQ() == nil {
		init.MaxRecvWR = 1
	}
	if n := c.receives.QueueSize(); n > 0 {
		init.MaxRecvWR, init.MaxRecvSGE = n, s.recvSGE
		if c.receives.Each() > 0 {
			init.MaxRecvSGE = 1
		}
	}
	conn.lane, err = c.lanes.Open(s.PD, init, c.lanes.depth(), (*laneOwner)(conn))
	return err
}

// replaceQP replaces a queue pair that has not been connected by one of another number.
func (conn *Connection) replaceQP() error {
	c, old := conn.ctx, conn.lane
	if err := conn.openLane(); err != nil {
		conn.lane = old
		return err
	}
	conn.lane.TakeWithheld(old)
	conn.receives.SetLane(conn.lane)
	delete(c.byQPN, old.Num())
	c.byQPN[conn.lane.Num()] = conn
	if c.last == conn {
		c.last = nil
	}
	conn.publish()
	err := old.Close()
	conn.returnReceives()
	return errors.Join(err, conn.initialize(c.set.Path.Port, 0))
}

// connecting begins the establishment.
func (conn *Connection) connecting() {
	conn.life.Connect()
	conn.changed(Exported, nil)
}

// ready ends the establishment with success.
func (conn *Connection) ready() {
	conn.setDialError(nil)
	if conn.readSubmitted && conn.path.maxReads == 0 { // the device would never begin the read
		conn.fail(fmt.Errorf("%w: a read or an atomic was submitted before the connection was Ready, and one end accepts none", ErrNotSupported))
		return
	}
	accepted := conn.accepted
	if accepted != nil && accepted.onEstablished != nil {
		f := accepted.onEstablished
		accepted.onEstablished = nil
		if f(conn); conn.state() != Connecting {
			return
		}
	}
	conn.heard()
	conn.life.Connected()
	conn.ctx.established.Add(1)
	conn.changed(Connecting, nil)
	if accepted != nil {
		accepted.listener.connected(1)
	}
	conn.lane.Admit()
	conn.startKeepalive(conn.ctx.host.Now())
}

// push gives a request to the lane, where it waits until the connection is Ready.
func (conn *Connection) push(r *lane.Request) {
	if conn.life.Phase() == life.Ready {
		conn.lane.Push(r)
	} else {
		conn.lane.Withhold(r)
	}
}

const (
	// keepaliveChecks is how often a connection is checked within Config.Keepalive. So silence
	// is noticed after at most 1.5 × Keepalive.
	keepaliveChecks = 2
	// keepaliveSlots is how many different times of checks there are between two checks of one
	// connection. The timer fires no more often, even for many connections.
	keepaliveSlots = 32
)

// startKeepalive sets the time of the connection's next check.
func (conn *Connection) startKeepalive(now time.Time) {
	d := conn.ctx.set.Keepalive
	if d < 0 || conn.loopback() {
		conn.deadline.Set(time.Time{})
		return
	}
	d /= keepaliveChecks
	slot := max(d/keepaliveSlots, 1)
	base := conn.ctx.started
	conn.deadline.Set(base.Add((now.Sub(base)+d)/slot*slot + slot))
}

// keepalive posts a write that fails if the peer is gone, unless the peer has given a sign of
// life. Requests at the device serve as well: the device repeats them until it gives up.
func (conn *Connection) keepalive(now time.Time) {
	conn.startKeepalive(now)
	conn.establishment.handle(event{kind: wordWritten}) // devices without watches do not report it
	if conn.silentChecks++; conn.life.Peer() != life.Unknown || conn.life.Dead() {
		return
	}
	if conn.silentChecks >= keepaliveChecks && conn.lane.Posted() == 0 && conn.signal.purpose == signalNone {
		conn.silentChecks = 0
		conn.signal.post(signalKeepalive, 0)
	}
}

// post submits the request, which must not be in use. The value is written to the
// peer's word. A keepalive writes nothing, which takes neither a receive nor a key
// (IBTA 9.7.4.1.5, C9-88), and so does any signal to a peer that has no word.
func (s *signalRequest) post(p purpose, value uint64) {
	conn := s.conn
	c := conn.ctx
	s.purpose = p
	wr := verbs.SendWR{ID: s.send.WR.ID, Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: s.send.WR.SGL[:0]}
	if p != signalKeepalive && p != signalDrain && conn.peer.readyAddr != 0 {
		words := &c.scratch.signals
		binary.BigEndian.PutUint64(words.bytes(conn.slot), value)
		wr.SGL = append(wr.SGL, words.SGE(conn.slot))
		wr.RemoteAddr, wr.RKey = conn.peer.readyAddr, conn.peer.readyKey
	}
	s.send.WR = wr
	conn.lane.Push(&s.send)
	c.wake()
}

// Completed implements lane.Completer.
func (s *signalRequest) Completed(status verbs.Status, vendor uint32) {
	conn, p := s.conn, s.purpose
	s.purpose = signalNone
	if conn.state() == Closed {
		conn.signalEnded(p, status)
		return
	}
	if p == signalReady && conn.state() == Connecting {
		conn.establishment.handle(event{kind: signalCompleted, status: status, vendor: vendor})
		return
	}
	if status != verbs.StatusSuccess {
		err := fmt.Errorf("%v: %w; %s", p, statusOf(status).err, conn.adviceFor(OpWrite, status))
		if conn.life.Dead() {
			err = fmt.Errorf("%v: %w: %w", p, statusOf(status).err, ErrPeerDead)
		}
		conn.failedTask(status, err)
	}
}

// changed updates the context when the state has changed. Closed is reported only when the
// connection is destroyed.
func (conn *Connection) changed(was ConnectionState, err error) {
	c, state := conn.ctx, conn.state()
	if err != nil {
		conn.err = err
	}
	if state == Failed {
		conn.setDialError(nil) // no further attempt: Err says why
		c.failures.Add(1)
	}
	if state == Ready {
		c.ready.Add(1)
	} else if was == Ready {
		c.ready.Add(-1)
	}
	conn.publish()
	if conn.awaited && state != Connecting {
		conn.awaited = false
		c.awaited--
	}
	if state == Closed {
		c.closedInPlace++
	} else {
		c.queueReport(conn, state, err)
	}
	if was.usable() && !state.usable() {
		conn.deadline.Set(time.Time{})
		c.usable--
		if !conn.unaccepted() {
			c.ended, c.lastFailure = true, nil
			if state == Failed {
				c.lastFailure = err
			}
		}
		if c.set.EndWithLastConnection && c.usable == 0 && c.lastFailure != nil {
			c.control.Fail(fmt.Errorf("rdma: the last connection has failed: %w", c.lastFailure))
		}
	}
	c.wake()
}

// unaccepted reports whether the connection has ended before the program had to know of it, or
// before the program had accepted it and the peer was told. It then does not count as the
// context's last connection.
func (conn *Connection) unaccepted() bool {
	e := conn.accepted
	return e != nil && (e.onEstablished != nil || !e.answered && (e.closedOnFailure || !e.accepted))
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

// failedTask ends the connection after a request has failed.
func (conn *Connection) failedTask(status verbs.Status, err error) {
	if conn.state() != Ready && conn.state() != Connecting {
		return
	}
	if status != verbs.StatusFlushed {
		conn.fail(err)
		return
	}
	// The device has put the queue pair in error by itself. The reason is in an event.
	conn.ctx.handleEventsOf(conn.lane.Num())
	conn.fail(fmt.Errorf("%w: the queue pair is in the error state", ErrDevice))
}

// peerDisconnected closes a connection whose peer has disconnected, if that is known and new.
// Earlier failures have been reported by now.
func (c *Connections) peerDisconnected(conn *Connection, known life.Peer) {
	if !conn.life.Learn(known) {
		return
	}
	c.afterCompletions(conn.peerClosed)
}

// Close ends the connection, in any state and in callbacks too, and notifies the peer.
// It does not wait. Tasks that the device has may still complete, for as long as
// Config.CloseTimeout; all others come back through their error callbacks, flushed,
// inside Progress. OnConnection reports Closed, and the place is free for another, when nothing
// of the connection is left at the device, and the peer has confirmed that it knows, or that
// time is over. On a connection by descriptors, the confirmation is the peer's answer to the
// notice, if both devices report writes to the word for it; Close waits for it at most 500 ms
// after the notice. Closing again does nothing. While another goroutine drives the engine it
// fails with pe.ErrBusy.
func (conn *Connection) Close() error {
	if err := conn.owned("close a connection"); err != nil {
		return err
	}
	conn.close()
	return nil
}

// owned fails while another goroutine drives the engine.
func (conn *Connection) owned(op string) error { return conn.ctx.control.Owned(op) }

func (conn *Connection) close() {
	was := conn.state()
	switch {
	case was == Closed:
		return
	case was != Failed && conn.life.Peer() >= life.Leaving:
		conn.peerClosed() // before this end
		return
	}
	how, wait := conn.disconnectMethod()
	a := conn.life.Close(conn.ctx.host.Now(), how, wait)
	conn.changed(was, nil)
	conn.do(a)
}

// disconnectMethod is how the peer is to know that the connection closes, and for how long.
func (conn *Connection) disconnectMethod() (life.DisconnectMethod, time.Duration) {
	wait := conn.ctx.set.CloseTimeout
	if wait < 0 || conn.state() == Exported || conn.loopback() || conn.establishment.peer() == life.Left {
		return life.Abort, 0
	}
	return conn.establishment.disconnectMethod(), wait
}

// peerClosed ends a connection that the peer has closed. The peer's own tasks are done.
func (conn *Connection) peerClosed() {
	was := conn.state()
	how, wait := conn.disconnectMethod()
	a := conn.life.PeerClosed(conn.ctx.host.Now(), how, wait)
	if was.usable() {
		conn.changed(was, conn.withName(ErrPeerClosed))
	}
	conn.do(a)
}

// fail ends a connection with an error. If the peer's disconnect notice has arrived, the
// connection was closed instead, and the error followed from that.
func (conn *Connection) fail(err error) {
	was := conn.state()
	if !was.usable() {
		return
	}
	if conn.life.Peer() >= life.Leaving || was != Exported && conn.establishment.peer() >= life.Leaving {
		a := conn.life.Close(conn.ctx.host.Now(), life.Abort, 0)
		conn.changed(was, conn.withName(ErrPeerClosed))
		conn.do(a)
		return
	}
	conn.failDespiteDisconnect(err)
}

// failDespiteDisconnect is fail for an error that does not follow from the peer's disconnect.
func (conn *Connection) failDespiteDisconnect(err error) {
	was := conn.state()
	if !was.usable() {
		return
	}
	a := conn.life.Fail()
	conn.changed(was, conn.withName(err))
	conn.do(a)
}

// do does what follows from an event of the connection's life. A function of the program may panic
// when the peer is told: the connection ends all the same.
func (conn *Connection) do(a life.Action) {
	defer conn.done(a)
	if a&life.Drain != 0 {
		conn.lane.StopPosting(&conn.signal.send)
		conn.drain()
	}
	if a&life.Tell != 0 {
		conn.establishment.tell()
	}
	if a&life.ShutQP != 0 {
		conn.establishment.queuePairShut()
	}
}

// done does the part that calls no function of the program.
func (conn *Connection) done(a life.Action) {
	c := conn.ctx
	if a&life.ShutQP != 0 {
		conn.receives.Stop()
		conn.shutLane()
	}
	if a&life.Destroy != 0 {
		conn.destruction.handledBy = c.lanes.Barrier()
		c.passing.Push(&conn.destruction.place)
		c.wake()
	}
	if !conn.life.Phase().Usable() {
		conn.deadline.Set(conn.life.Deadline(c.host.Now(), conn.establishment.polls()))
	}
}

// drain goes on when the tasks at the device are done: at once, or when a write behind them has
// completed.
func (conn *Connection) drain() {
	switch {
	case conn.signal.purpose != signalNone: // it is called again when that has completed
	case conn.lane.Posted() > 0:
		conn.signal.post(signalDrain, 0)
	default:
		conn.do(conn.life.Drained(conn.ctx.host.Now()))
	}
}

// signalEnded goes on when the signal of a closing connection has completed.
func (conn *Connection) signalEnded(p purpose, status verbs.Status) {
	now := conn.ctx.host.Now()
	switch phase := conn.life.Phase(); {
	case status != verbs.StatusSuccess:
		conn.do(conn.life.Break(now))
	case phase == life.Draining:
		conn.drain()
	case phase == life.Telling && p == signalDisconnect:
		conn.do(conn.life.Told(now))
	case phase == life.Telling:
		conn.establishment.tell()
	}
}

// due is called at the connection's deadline.
func (conn *Connection) due(now time.Time) {
	switch phase := conn.life.Phase(); {
	case phase == life.Connecting, phase == life.Ready && conn.ctx.set.Transport == verbs.UC:
		conn.establishment.handle(event{kind: deadlinePassed, now: now})
	case phase == life.Ready:
		conn.keepalive(now)
	default:
		if phase.Closing() {
			conn.establishment.handle(event{kind: wordWritten}) // the device may not have reported it
		}
		conn.do(conn.life.Due(now))
	}
}

// laneOwner is a Connection as the owner of its lane and its receive queue.
type laneOwner Connection

// PostFailed implements lane.Owner.
func (o *laneOwner) PostFailed(err error) {
	conn := (*Connection)(o)
	conn.fail(fmt.Errorf("%w: post requests: %w", ErrDevice, err))
	conn.do(conn.life.Break(conn.ctx.host.Now()))
}

// RefillFailed implements receiving.QueueOwner.
func (o *laneOwner) RefillFailed(err error) {
	conn := (*Connection)(o)
	conn.fail(fmt.Errorf("%w: post receives: %w", ErrDevice, err))
	conn.do(conn.life.Break(conn.ctx.host.Now()))
}

// laneDrained implements laneDrainer.
func (o *laneOwner) laneDrained() int {
	conn := (*Connection)(o)
	conn.ctx.settle(conn.lane)
	if conn.lane.Closed() {
		conn.removeQPN()
		conn.returnReceives()
	}
	n := conn.lane.Flush()
	conn.do(conn.life.Returned(conn.ctx.host.Now()))
	return n
}

// removeQPN forgets the number of a destroyed queue pair: the device may reuse it.
func (conn *Connection) removeQPN() {
	c, n := conn.ctx, conn.lane.Num()
	if c.byQPN[n] != conn {
		return
	}
	c.handleEventsOf(n)
	delete(c.byQPN, n)
	if c.last == conn {
		c.last = nil
	}
}

// destroyRetired destroys connections whose completions have all been handled, and returns how
// many. Completions of receives of all connections come from one queue. None of the connection
// is left when that queue is empty, or when as many completions have been handled as it holds. A
// drained lane has had those of receives of its own.
func (c *Connections) destroyRetired() int {
	n := 0
	for e := c.passing.Front(); e != nil; e = c.passing.Front() {
		if c.receives.Each() == 0 && !c.lanes.Passed(e.Value.destruction.handledBy) {
			break
		}
		c.passing.Pop()
		n += e.Value.destroy()
	}
	return n
}

// destroy closes the queue pair and frees the place.
func (conn *Connection) destroy() int {
	c := conn.ctx
	conn.life.Passed()
	conn.endWindows()
	if err := conn.lane.Close(); err != nil {
		c.control.Log().Warn().Err(err).Stringer("connection", conn).Msg("failed to close the queue pair")
	}
	if c.settle(conn.lane); conn.lane.Settle() == nil {
		conn.returnReceives()
	}
	conn.removeQPN()
	n := 1 + conn.lane.Flush()
	if err := conn.receives.Close(c.kept != nil); err != nil {
		c.control.Log().Warn().Err(err).Stringer("connection", conn).Msg("failed to free the buffers for messages")
	}
	conn.deadline.Set(time.Time{})
	conn.establishment.release()
	conn.signal.send.ChangeID()
	c.lanes.Remove(&conn.signal.send)
	c.vacate(conn)
	var reason error
	if errors.Is(conn.err, ErrPeerClosed) {
		reason = conn.err
	}
	if conn.interrupted && c.interrupted == nil {
		c.interrupted = fmt.Errorf("rdma: %v ended with requests under way: %w", conn, conn.withoutName(conn.err))
	}
	c.queueReport(conn, Closed, reason)
	if c.set.EndWithLastConnection && c.usable == 0 && c.phase == phaseUp && c.ended {
		c.endsWithLast = true
	}
	return n
}
