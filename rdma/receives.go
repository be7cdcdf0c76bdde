package rdma

import (
	"fmt"

	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/verbs"
)

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
		taken, err := c.srq.PostRecv(c.recvWRs[:n])
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
	i := wc.ID &^ lane.ReceiveID
	if i >= uint64(len(c.receives)) || !c.receives[i].posted {
		return // of a receive that was given back already
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
		conn.peerAlive = true
		if conn.state == Connecting {
			conn.ready() // the peer sends only when it is Ready
		}
	}
	t.arrived(wc)
}
