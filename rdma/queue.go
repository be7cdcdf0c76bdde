package rdma

import (
	"fmt"

	"github.com/verbena-rdma/verbena/verbs"
)

// push appends a task to its connection, to be posted by flush.
func (conn *Connection) push(r *request) {
	if conn.tail == nil {
		conn.head = r
	} else {
		conn.tail.next = r
	}
	conn.tail = r
	if conn.unposted == nil {
		conn.unposted = r
	}
	conn.mark()
}

// mark puts the connection on the list of those with tasks to be posted.
func (conn *Connection) mark() {
	if !conn.dirty {
		conn.dirty = true
		conn.ctx.dirty = append(conn.ctx.dirty, conn)
	}
}

// pop takes the oldest task off the connection.
func (conn *Connection) pop() *request {
	r := conn.head
	conn.head = r.next
	if conn.head == nil {
		conn.tail = nil
	}
	if conn.unposted == r {
		conn.unposted = r.next
	}
	r.next = nil
	if r.posted {
		r.posted = false
		conn.posted--
	}
	return r
}

// flush posts everything that was held back.
func (c *Context) flush() {
	if len(c.dirty) > 0 {
		for _, conn := range c.dirty {
			conn.dirty = false
			conn.post()
		}
		c.dirty = c.dirty[:0]
	}
	if c.recvWaits() {
		c.postReceives()
	}
}

// post posts what the send queue has room for. The last request of each batch is
// signaled in any case: without that, nothing would tell of those before it.
func (conn *Connection) post() {
	c := conn.ctx
	for conn.state == Ready && conn.unposted != nil && conn.posted < c.sendDepth {
		n := 0
		for r := conn.unposted; r != nil && n < min(postBatch, c.sendDepth-conn.posted); r = r.next {
			wr := &c.sendWRs[n]
			*wr = r.wr
			if !r.quiet {
				wr.Flags |= verbs.FlagSignaled
			}
			n++
		}
		c.sendWRs[n-1].Flags |= verbs.FlagSignaled
		taken, err := conn.qp.PostSend(c.sendWRs[:n])
		for range taken {
			conn.unposted.posted = true
			conn.unposted = conn.unposted.next
		}
		conn.posted += taken
		if err != nil {
			// Those taken may not be signaled; failing brings them back.
			conn.fail(fmt.Errorf("rdma: %v: %w: posting: %w", conn, ErrDevice, err))
		}
	}
}

// sent handles the completion of a task on a send queue, and with it those of
// the tasks before it that were not signaled (IBTA 10.8.6).
func (c *Context) sent(wc *verbs.WC) int {
	if wc.ID >= uint64(len(c.requests)) || !c.requests[wc.ID].posted {
		c.wcNext++
		return 1
	}
	r, status, vendor := c.requests[wc.ID], wc.Status, wc.VendorError
	conn := r.conn
	n := 1
	for conn.head != r {
		conn.pop().succeed()
		n++
	}
	c.wcNext++
	conn.pop()
	if conn.unposted != nil {
		conn.mark()
	}
	if status == verbs.StatusSuccess {
		r.succeed()
		return n
	}
	err := &TaskError{Op: r.op, Status: status, Connection: conn, VendorError: vendor}
	conn.failedTask(err)
	r.failWith(err)
	return n
}

// failedTask draws the consequence of a task's failure for its connection.
func (conn *Connection) failedTask(err *TaskError) {
	if conn.state != Ready && conn.state != Connecting {
		return
	}
	if err.Status != verbs.StatusFlushed {
		conn.fail(err)
		return
	}
	// Flushed, and nobody here did it: the reason comes as an event.
	conn.ctx.handleAlerts()
	conn.fail(fmt.Errorf("rdma: %v: %w: its queue pair is in error", conn, ErrDevice))
}

// recvWaits reports whether receives can be posted that are not.
func (c *Context) recvWaits() bool {
	return c.recvHead != nil && c.recvPosted < c.recvDepth && c.phase == phaseUp
}

func (c *Context) pushReceive(t *ReceiveTask) {
	if c.recvTail == nil {
		c.recvHead = t
	} else {
		c.recvTail.next = t
	}
	c.recvTail = t
}

// postReceives posts what the shared receive queue has room for.
func (c *Context) postReceives() {
	for c.recvWaits() {
		n := 0
		for t := c.recvHead; t != nil && n < min(postBatch, c.recvDepth-c.recvPosted); t = t.next {
			c.recvWRs[n] = t.wr
			n++
		}
		taken, err := c.srq.PostRecv(c.recvWRs[:n])
		for range taken {
			t := c.recvHead
			c.recvHead, t.next = t.next, nil
			t.posted = true
		}
		if c.recvHead == nil {
			c.recvTail = nil
		}
		c.recvPosted += taken
		if err != nil {
			c.control.Fail(fmt.Errorf("rdma: %w: posting receives of context %q on %s: %w", ErrDevice, c.set.Name, c.dev.Name(), err))
			return
		}
	}
}

// received handles the completion of a receive.
func (c *Context) received(wc *verbs.WC) int {
	i := wc.ID &^ idReceive
	if i >= uint64(len(c.receives)) || !c.receives[i].posted {
		return 1
	}
	t := c.receives[i]
	t.posted = false
	c.recvPosted--
	conn := c.connectionOf(wc.QPN)
	t.conn = conn
	if wc.Status != verbs.StatusSuccess {
		err := &TaskError{Op: OpReceive, Status: wc.Status, Connection: conn, VendorError: wc.VendorError}
		if conn != nil {
			conn.failedTask(err)
		}
		t.fail(err)
		return 1
	}
	if conn != nil && conn.state == Connecting {
		conn.ready() // the active end sends nothing before its hello has arrived
	}
	t.arrived(wc)
	return 1
}
