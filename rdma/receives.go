package rdma

import (
	"fmt"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/verbs"
)

// receive is one receive of a context, for any of its connections: of a task, or of messageBuffers,
// which posts it again and again.
type receive struct {
	owner  receiver
	index  int                 // among the receives of the context
	place  fifo.Node[*receive] // in recvWaiting of the context, or in receives of conn
	posted bool
	conn   *Connection // to whose queue pair it was posted; nil: to the context's queue
	wr     verbs.RecvWR
}

// The ID of a receive is lane.ReceiveID, its index, and a generation. The generation tells it
// from an earlier post to a queue pair that no longer exists.
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

// receiver handles the outcome of a receive: a task or a message buffer.
type receiver interface {
	// arrived is called when the receive has taken a message.
	arrived(a *arrival)
	// failed is called when the receive has failed. The connection may be nil.
	failed(conn *Connection, err *TaskError)
	// lengthAdvice says what to do about a message that was too long for the receive.
	lengthAdvice() string
	// flushed is called when the queue has been destroyed, or could not be, even if the
	// receive was not in flight. posted says whether the receive was at the device. flushed
	// returns how many callbacks it ran.
	flushed(posted bool) int
}

// addReceive registers a receive with the context, until the context is closed.
func (c *base) addReceive(r *receive, owner receiver) {
	r.owner, r.place.Value, r.index = owner, r, len(c.receives)
	r.wr.ID = lane.ReceiveID | uint64(r.index)
	c.receives = append(c.receives, r)
}

// receivesPostable reports whether a receive is to be posted and there is room for it.
func (c *base) receivesPostable() bool {
	return c.phase == phaseUp && (c.recvWaiting.Len() > 0 && c.recvPosted < c.recvDepth && c.recvQueue != nil || c.service.needsReceives())
}

// postReceives posts waiting receives while the receive queues have room.
func (c *base) postReceives() {
	for c.receivesPostable() {
		if c.recvQueue == nil {
			c.service.refill()
			continue
		}
		if _, err := c.postSomeReceives(c.recvQueue, lane.PostBatch, nil); err != nil {
			c.control.Fail(fmt.Errorf("rdma: %w: post receives of context %q on %s: %w", ErrDevice, c.set.Name, c.dev.Name(), err))
			return
		}
	}
}

// postSomeReceives posts the first receives that wait to a queue: to that of conn, or to that
// of the context if conn is nil. It returns how many the queue has taken.
func (c *base) postSomeReceives(queue receiveQueue, most int, conn *Connection) (int, error) {
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

// receiveReturned notes that the device no longer has a receive.
func (c *base) receiveReturned(r *receive) {
	r.posted = false
	c.recvPosted--
	if conn := r.conn; conn != nil {
		r.conn = nil
		conn.receives.Remove(&r.place)
		conn.queueRefill()
	}
}

// received handles the completion of a receive.
func (c *base) received(wc *verbs.WC) {
	if c.each != nil {
		c.service.receivedOwn(wc)
		return
	}
	if wc.Unsolicited {
		c.service.receivedUnsolicited(wc)
		return
	}
	i := wc.ID & receiveIndexMask
	if i >= uint64(len(c.receives)) || !c.receives[i].posted || c.receives[i].wr.ID != wc.ID {
		return // of a receive that was returned already
	}
	r := c.receives[i]
	conn := r.conn
	c.receiveReturned(r)
	if wc.Status == verbs.StatusSuccess {
		c.service.received(r, conn, wc)
	} else {
		c.service.receiveFailed(r, conn, wc)
	}
}

// arrivalOf is the arrival of a message.
func (c *base) arrivalOf(wc *verbs.WC) *arrival {
	a := &c.arrival
	*a = arrival{length: int(wc.Bytes)}
	a.opcode, a.imm = kindOf(wc)
	return a
}

// failedReceive is the error of a receive.
func failedReceive(r *receive, conn *Connection, wc *verbs.WC) *TaskError {
	err := &TaskError{Op: OpReceive, Status: wc.Status, Connection: conn, VendorError: wc.VendorError}
	if wc.Status == verbs.StatusLocalLengthError {
		err.advice = r.owner.lengthAdvice()
	}
	return err
}

// flushReceive ends a receive when the queue has been destroyed, and returns how many
// callbacks that took.
func (c *base) flushReceive(r *receive) int {
	c.recvWaiting.Remove(&r.place)
	posted := r.posted
	if r.conn != nil { // its queue pair could not be destroyed
		r.conn.receives.Remove(&r.place)
		r.conn = nil
	}
	r.posted = false
	return r.owner.flushed(posted)
}

// takesReceives reports whether receives can be posted.
func (c *base) takesReceives() bool {
	s := c.State()
	return c.phase == phaseUp && (s == pe.Starting || s == pe.Running)
}
