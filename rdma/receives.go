package rdma

import (
	"fmt"

	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/verbs"
)

// flush posts everything that was held back.
func (c *Context) flush() {
	c.lanes.Flush()
	if c.receivesWait() {
		c.postReceives()
	}
}

// receivesWait reports whether receives can be posted that are not.
func (c *Context) receivesWait() bool {
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
	for c.receivesWait() {
		n := 0
		for t := c.recvHead; t != nil && n < min(lane.PostBatch, c.recvDepth-c.recvPosted); t = t.next {
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
func (c *Context) received(wc *verbs.WC) {
	i := wc.ID &^ lane.ReceiveID
	if i >= uint64(len(c.receives)) || !c.receives[i].posted {
		return
	}
	t := c.receives[i]
	t.posted = false
	c.recvPosted--
	conn := c.connectionOf(wc.QPN)
	t.conn = conn
	if wc.Status != verbs.StatusSuccess {
		err := &TaskError{Op: OpReceive, Status: wc.Status, Connection: conn, VendorError: wc.VendorError}
		if conn != nil {
			conn.failedTask(wc.Status, err)
		}
		t.fail(err)
		return
	}
	if conn != nil {
		conn.heard = true
		if conn.state == Connecting {
			conn.ready() // the active end sends nothing before its ready signal has arrived
		}
	}
	t.arrived(wc)
}
