package rdma

import (
	"fmt"
	"slices"

	"github.com/verbena-rdma/verbena/rdma/internal/receiving"
	"github.com/verbena-rdma/verbena/verbs"
)

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
	c.init(dev, set, c, &c.written, &lastConnection{c: c})
	c.written.wake, c.events.taken = c.wake, c.eventTaken
	if cfg.Engine != nil {
		if err := cfg.Engine.Connect(c); err != nil {
			return nil, fmt.Errorf("rdma: make a context: %w", err)
		}
	}
	return c, nil
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
	if conn != nil && wc.Status == verbs.StatusSuccess {
		conn.lane.NoteReceived(wc)
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
	switch {
	case wc.Status == verbs.StatusFlushed:
		if conn != nil {
			conn.failedTask(wc.Status, nil)
		}
		err.Cause = c.causeOf(conn)
	case conn != nil:
		conn.failDespiteDisconnect(err) // the peer sent the message before that
	}
	receiverOf(t).failed(t, conn, err)
}
