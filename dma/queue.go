package dma

import (
	"fmt"

	"github.com/verbena-rdma/verbena/verbs"
)

// idReceive marks the IDs of receives; the rest is the number of the piece.
const idReceive = 1 << 63

// push appends a task, to be posted by post.
func (c *Context) push(t *CopyTask) {
	if c.tail == nil {
		c.head = t
	} else {
		c.tail.next = t
	}
	c.tail = t
	if c.unposted == nil {
		c.unposted = t
	}
}

// pop takes the oldest task off.
func (c *Context) pop() *CopyTask {
	t := c.head
	c.head = t.next
	if c.head == nil {
		c.tail = nil
	}
	if c.unposted == t {
		c.unposted = c.head
	}
	t.next = nil
	return t
}

// room is how many pieces the queues can take.
func (c *Context) room() int {
	return c.depth - int(c.sendPosted-min(c.sent, c.received))
}

func (c *Context) postable() bool { return !c.ended && c.unposted != nil && c.room() > 0 }

// post posts what the queues have room for. All receives of a batch go before
// all of its sends, so that none of these meets no receive.
func (c *Context) post() {
	for c.postable() {
		n := c.fill(min(postBatch, c.room()))
		if n == 0 {
			continue
		}
		taken, err := c.qp.PostRecv(c.recvWRs[:n])
		c.recvPosted += uint64(taken)
		if err == nil {
			taken, err = c.qp.PostSend(c.sendWRs[:n])
			c.sendPosted += uint64(taken)
		}
		if err != nil {
			c.bad = min(c.bad, c.sendPosted)
			c.end(fmt.Errorf("dma: %w: posting copies of context %q on %s: %w", ErrDevice, c.set.Name, c.dev.Name(), err))
		}
	}
}

// fill makes the requests for up to most pieces. The last send is signaled in any
// case: without that, nothing would tell of those before it.
func (c *Context) fill(most int) int {
	n := 0
	c.sendSGL, c.recvSGL = c.sendSGL[:0], c.recvSGL[:0]
	for n < most && c.unposted != nil {
		t, number := c.unposted, c.sendPosted+uint64(n)
		if !t.begun {
			t.begun, t.begin, t.end = true, number, number
		}
		if from, to := c.cut(t); len(from) > 0 {
			send, recv := &c.sendWRs[n], &c.recvWRs[n]
			*send = verbs.SendWR{ID: number, Op: verbs.OpSend, SGL: from}
			*recv = verbs.RecvWR{ID: idReceive | number, SGL: to}
			if t.left == 0 && !t.quiet {
				send.Flags = verbs.FlagSignaled
			}
			t.end = number + 1
			n++
		}
		if t.left == 0 {
			c.unposted = t.next
		}
	}
	if n > 0 {
		c.sendWRs[n-1].Flags = verbs.FlagSignaled
	}
	return n
}

// poll takes completions, up to a bound, and returns how many. It runs no
// callbacks: finish does.
func (c *Context) poll() int {
	n := 0
	for n < pollBudget && !c.broken {
		got, err := c.cq.Poll(c.wcs[:])
		for i := range c.wcs[:got] {
			c.took(&c.wcs[i])
		}
		n += got
		if err != nil {
			c.breakDown(err)
		}
		if got < pollBatch {
			break
		}
	}
	return n
}

// took notes one completion. That of a send stands also for those before it that
// were not signaled (IBTA 10.8.6).
func (c *Context) took(wc *verbs.WC) {
	piece, side := wc.ID&^idReceive, sending
	if wc.ID&idReceive != 0 {
		side = receiving
		c.received = max(c.received, piece+1)
	} else {
		c.sent = max(c.sent, piece+1)
	}
	if wc.Status == verbs.StatusSuccess {
		return
	}
	c.bad = min(c.bad, piece)
	if f := &c.faults[side]; f.err == nil && wc.Status != verbs.StatusFlushed {
		*f = fault{&TaskError{Context: c, Status: wc.Status, VendorError: wc.VendorError}, piece}
	}
}

// finished reports whether the device has given back everything of a task. In the
// end that is also one that never got there.
func (c *Context) finished(t *CopyTask) bool {
	switch {
	case c.phase != phaseUp && (c.broken || c.dead):
		return c.qp == nil
	case c.ended:
		return c.sent >= min(t.end, c.sendPosted) && c.received >= min(t.end, c.recvPosted)
	}
	return t.begun && t.left == 0 && c.sent >= t.end && c.received >= t.end
}

// finish runs the callbacks of tasks that have come back, up to a bound, and
// returns how many.
func (c *Context) finish() int {
	n := 0
	for ; n < pollBudget && c.head != nil && c.finished(c.head); n++ {
		t := c.pop()
		if err := c.verdict(t); err != nil {
			t.fail(err)
		} else {
			t.succeed()
		}
	}
	return n
}

// verdict says why a task has failed, or nil.
func (c *Context) verdict(t *CopyTask) error {
	switch {
	case t.spoiled != nil:
		return t.spoiled
	case t.left == 0 && t.end <= min(c.bad, c.sent, c.received):
		return nil
	}
	for _, f := range c.faults {
		if f.err != nil && f.piece >= t.begin && f.piece < t.end {
			return f.err
		}
	}
	return &TaskError{Context: c, Status: verbs.StatusFlushed}
}
