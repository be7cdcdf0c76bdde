package rdma

import (
	"fmt"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/lane"
)

// receive is one receive of a context, for any of its connections: that of a task, or one
// that an inbox posts again and again.
type receive struct {
	owner  receiver
	index  int                 // among those of the context
	place  fifo.Node[*receive] // among those that wait, or those of conn
	posted bool
	conn   *Connection // it was posted to its queue pair; nil: to the context's queue
	wr     verbs.RecvWR
}

// The ID of a receive is, besides lane.ReceiveID, its index and a generation, which
// distinguishes it from what was posted to a queue pair that is gone.
const (
	receiveIndexMask      = 1<<32 - 1
	receiveGeneration     = 1 << 32
	receiveGenerationMask = 1<<31 - 1
)

// receiveQueue is where receives are posted: a shared receive queue, or the endpoint's
// queue pair.
type receiveQueue interface {
	PostRecv(wrs []verbs.RecvWR) (int, error)
}

// receiver is what a receive is made for.
type receiver interface {
	// arrived is called when the receive has taken a message.
	arrived(a *arrival)
	// failed is called when the receive has failed. The connection may be nil.
	failed(conn *Connection, err *TaskError)
	// lengthAdvice says what to do about a message that was too long for the receive.
	lengthAdvice() string
	// flushed is called when the queue has been destroyed, or could not be, whether the receive
	// was in flight or not, and says whether it was at the device. It returns how many
	// callbacks it ran.
	flushed(posted bool) int
}

// addReceive makes a receive known to the context, for good.
func (c *Context) addReceive(r *receive, owner receiver) {
	r.owner, r.place.Value, r.index = owner, r, len(c.receives)
	r.wr.ID = lane.ReceiveID | uint64(r.index)
	c.receives = append(c.receives, r)
}

// receivesPostable reports whether a receive waits and there is room for it.
func (c *Context) receivesPostable() bool {
	return c.recvWaiting.Len() > 0 && c.recvPosted < c.recvDepth && c.phase == phaseUp && (c.recvQueue != nil || c.hungry.Len() > 0)
}

// postReceives posts what the receive queues have room for.
func (c *Context) postReceives() {
	for c.receivesPostable() {
		if c.recvQueue == nil {
			c.feed(c.hungry.Pop().Value)
			continue
		}
		if _, err := c.postSomeReceives(c.recvQueue, lane.PostBatch, nil); err != nil {
			c.control.Fail(fmt.Errorf("rdma: %w: posting receives of context %q on %s: %w", ErrDevice, c.set.Name, c.dev.Name(), err))
			return
		}
	}
}

// postSomeReceives posts the first receives that wait to a queue: to that of a connection, or
// to that of the context, where conn is nil. It returns how many the queue has taken.
func (c *Context) postSomeReceives(queue receiveQueue, most int, conn *Connection) (int, error) {
	n := 0
	for e := c.recvWaiting.Front(); e != nil && n < min(most, lane.PostBatch, c.recvDepth-c.recvPosted); e = e.Next() {
		c.recvWRs[n] = e.Value.wr
		n++
	}
	taken, err := queue.PostRecv(c.recvWRs[:n])
	for range taken {
		r := c.recvWaiting.Pop().Value
		r.posted, r.conn = true, conn
		if conn != nil {
			conn.receives.Push(&r.place)
		}
	}
	c.recvPosted += taken
	return taken, err
}

// takenBack notes that the device no longer has a receive.
func (c *Context) takenBack(r *receive) {
	r.posted = false
	c.recvPosted--
	if conn := r.conn; conn != nil {
		r.conn = nil
		conn.receives.Remove(&r.place)
		conn.becomeHungry()
	}
}

// receiveShare is how many receives a connection has at most, where each has a queue of its
// own: what a connection has got, an other one cannot use.
func (c *Context) receiveShare() int { return c.recvDepth / c.set.MaxConnections }

// feed posts receives to a connection. It gets its part of those that wait, and is next again
// behind the others, so that they are dealt out in turn.
func (c *Context) feed(conn *Connection) {
	part := (c.recvWaiting.Len() + c.hungry.Len()) / (c.hungry.Len() + 1) // rounded up
	_, err := c.postSomeReceives(conn.lane.QP(), min(part, c.receiveShare()-conn.receives.Len()), conn)
	if err != nil {
		conn.takesReceives = false
		conn.fail(fmt.Errorf("%w: posting receives: %w", ErrDevice, err))
		conn.shut() // also if it is closing
		return
	}
	conn.becomeHungry()
}

// becomeHungry has the connection be given receives, if it has room for them.
func (conn *Connection) becomeHungry() {
	c := conn.ctx
	if conn.takesReceives && !conn.transition.running && !conn.hungry.Queued() && conn.receives.Len() < c.receiveShare() {
		c.hungry.Push(&conn.hungry)
	}
}

// takeReceives has a connection with a receive queue of its own be given receives. Its queue
// pair must be able to take them, and not yet able to receive.
func (conn *Connection) takeReceives() {
	c := conn.ctx
	if c.set.receivesShared || len(c.receives) == 0 || c.phase != phaseUp {
		return
	}
	conn.takesReceives = true
	conn.becomeHungry()
	c.postReceives()
}

// refuseReceives ends that.
func (conn *Connection) refuseReceives() {
	conn.takesReceives = false
	conn.ctx.hungry.Remove(&conn.hungry)
}

// returnReceives gives the receives of a queue pair that was reset or destroyed to other
// connections. What the device still says of them is ignored.
func (conn *Connection) returnReceives() {
	conn.refuseReceives()
	c := conn.ctx
	for e := conn.receives.Front(); e != nil; e = conn.receives.Front() {
		r := e.Value
		c.takenBack(r)
		generation := (r.wr.ID/receiveGeneration + 1) & receiveGenerationMask
		r.wr.ID = lane.ReceiveID | generation*receiveGeneration | uint64(r.index)
		c.recvWaiting.Push(&r.place)
	}
	c.poke()
}

// received handles the completion of a receive.
func (c *Context) received(wc *verbs.WC) {
	if wc.Unsolicited {
		c.receivedUnsolicited(wc)
		return
	}
	i := wc.ID & receiveIndexMask
	if i >= uint64(len(c.receives)) || !c.receives[i].posted || c.receives[i].wr.ID != wc.ID {
		return // of a receive that was given back already
	}
	r := c.receives[i]
	conn := r.conn
	own := conn != nil
	c.takenBack(r)
	if !own && c.datagrams == nil {
		conn = c.connectionOf(wc.QPN)
	}
	switch {
	case wc.Status == verbs.StatusFlushed && own:
		c.recvWaiting.Push(&r.place) // for a message of another connection
		conn.failedTask(wc.Status, nil)
		return
	case wc.Status != verbs.StatusSuccess:
		c.receiveFailed(r, conn, wc)
		return
	}
	if conn != nil {
		conn.peerAlive = true
		if conn.state == Connecting || conn.hidden() {
			if !conn.messageBeforeReady() {
				c.recvWaiting.Push(&r.place) // for a message of another connection
				return
			}
			if c.startable() {
				c.control.Started() // before the program sees the message
			}
		}
	}
	a := &c.arrival
	*a = arrival{ctx: c, conn: conn, length: int(wc.Bytes)}
	a.opcode, a.imm = kindOf(wc)
	if wc.InvalidatedRKey != 0 {
		a.lent = c.invalidated(wc.InvalidatedRKey)
	}
	if c.datagrams != nil {
		c.datagrams.arrivalFrom(a, r, wc)
		if c.startable() {
			c.control.Started()
		}
	}
	r.owner.arrived(a)
}

// receivedUnsolicited hands a write with immediate that has taken no receive to the
// function of Receive.
func (c *Context) receivedUnsolicited(wc *verbs.WC) {
	if c.inbox == nil || c.datagrams == nil || wc.Status != verbs.StatusSuccess {
		return
	}
	a := &c.arrival
	*a = arrival{ctx: c, length: int(wc.Bytes)}
	a.opcode, a.imm = kindOf(wc)
	c.datagrams.arrivalFrom(a, nil, wc)
	if c.startable() {
		c.control.Started()
	}
	c.inbox.take(a, nil)
}

// appendHeader appends the entry for the header of a receive, where it has one.
func (c *Context) appendHeader(sgl []verbs.SGE, r *receive) []verbs.SGE {
	if c.datagrams == nil || c.datagrams.headers == nil {
		return sgl
	}
	e := c.datagrams.header
	e.Addr += uint64(headerStride * r.index)
	return append(sgl, e)
}

func (c *Context) receiveFailed(r *receive, conn *Connection, wc *verbs.WC) {
	err := &TaskError{Op: OpReceive, Status: wc.Status, Connection: conn, VendorError: wc.VendorError}
	if wc.Status == verbs.StatusLocalLengthError {
		err.advice = r.owner.lengthAdvice()
	}
	switch {
	case conn != nil:
		conn.failedTask(wc.Status, err)
	case c.datagrams != nil && c.phase == phaseUp:
		// Some devices end a queue pair for datagrams with a failed receive (rxe does for a
		// message that is too long).
		if attr, e := c.datagrams.lane.QP().Query(); e != nil || attr.State == verbs.QPError {
			c.control.Fail(err)
		}
	}
	if wc.Status == verbs.StatusFlushed {
		err.Cause = c.causeOf(conn)
	}
	r.owner.failed(conn, err)
}

// flushReceive ends a receive when the queue has been destroyed, and returns how many
// callbacks that took.
func (c *Context) flushReceive(r *receive) int {
	c.recvWaiting.Remove(&r.place)
	posted := r.posted
	if r.conn != nil { // whose queue pair could not be destroyed
		r.conn.receives.Remove(&r.place)
		r.conn = nil
	}
	r.posted = false
	return r.owner.flushed(posted)
}

// takesReceives reports whether receives can be posted.
func (c *Context) takesReceives() bool {
	s := c.State()
	return c.phase == phaseUp && (s == pe.Starting || s == pe.Running)
}
