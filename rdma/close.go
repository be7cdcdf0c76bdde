package rdma

import (
	"errors"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/rdma/internal/life"
	"github.com/verbena-rdma/verbena/verbs"
)

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

// shutLane puts the queue pair in error, so that what is posted comes back flushed, as soon as no
// helper uses the queue pair.
func (conn *Connection) shutLane() {
	t := &conn.transition
	t.shut.Store(t.running)
	if t.running {
		return
	}
	t.cancel()
	if err := conn.lane.Shut(); err != nil {
		conn.ctx.control.Log().Warn().Err(err).Stringer("connection", conn).Msg("failed to move the queue pair to the error state")
	}
	conn.ctx.wake()
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
