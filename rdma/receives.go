package rdma

import (
	"fmt"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/verbs"
)

// receive is one receive of the queue that all connections share: that of a task, or
// one that an inbox posts again and again.
type receive struct {
	owner  receiver
	index  int                 // among those of the context
	place  fifo.Node[*receive] // among those that wait
	posted bool
	wr     verbs.RecvWR
}

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
	return c.recvWaiting.Len() > 0 && c.recvPosted < c.recvDepth && c.phase == phaseUp
}

// postReceives posts what the shared receive queue has room for.
func (c *Context) postReceives() {
	for c.receivesPostable() {
		n := 0
		for e := c.recvWaiting.Front(); e != nil && n < min(lane.PostBatch, c.recvDepth-c.recvPosted); e = e.Next() {
			c.recvWRs[n] = e.Value.wr
			n++
		}
		taken, err := c.recvQueue.PostRecv(c.recvWRs[:n])
		for range taken {
			c.recvWaiting.Pop().Value.posted = true
		}
		c.recvPosted += taken
		if err != nil {
			c.control.Fail(fmt.Errorf("rdma: %w: posting receives of context %q on %s: %w", ErrDevice, c.set.Name, c.dev.Name(), err))
			return
		}
	}
}

// received handles the completion of a receive.
func (c *Context) received(wc *verbs.WC) {
	if wc.Unsolicited {
		c.receivedUnsolicited(wc)
		return
	}
	i := wc.ID &^ lane.ReceiveID
	if i >= uint64(len(c.receives)) || !c.receives[i].posted {
		return // of a receive that was given back already
	}
	r := c.receives[i]
	r.posted = false
	c.recvPosted--
	var conn *Connection
	if c.datagrams == nil {
		conn = c.connectionOf(wc.QPN)
	}
	if wc.Status != verbs.StatusSuccess {
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
			c.failWith(err)
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
	r.posted = false
	return r.owner.flushed(posted)
}

// takesReceives reports whether receives can be posted.
func (c *Context) takesReceives() bool {
	s := c.State()
	return c.phase == phaseUp && (s == pe.Starting || s == pe.Running)
}
