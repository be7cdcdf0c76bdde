package rdma

import (
	"container/heap"
	"sync/atomic"
	"time"
)

// deadlines are those of a context's connections, and the timer for the first. Setting
// one takes time that grows with the logarithm of how many there are.
type deadlines struct {
	heap  deadlineHeap
	timer *time.Timer
	base  time.Time   // from which the times of keepalives are counted
	armed time.Time   // when the timer goes off; zero: it does not
	due   atomic.Bool // it has gone off
}

// setDeadline sets when the connection's due is to be called; zero for never. It
// replaces the deadline before.
func (c *Context) setDeadline(conn *Connection, at time.Time) {
	h := &c.deadlines.heap
	conn.deadline = at
	switch {
	case at.IsZero() && conn.deadlineIndex >= 0:
		heap.Remove(h, conn.deadlineIndex)
	case at.IsZero():
	case conn.deadlineIndex >= 0:
		heap.Fix(h, conn.deadlineIndex)
	default:
		heap.Push(h, conn)
	}
	c.armTimer()
}

// armTimer sets the timer to the first deadline, if it would go off later. Too early
// does no harm.
func (c *Context) armTimer() {
	d := &c.deadlines
	if len(d.heap) == 0 || d.timer == nil {
		return
	}
	first := d.heap[0].deadline
	if d.armed.IsZero() || first.Before(d.armed) {
		d.armed = first
		d.timer.Reset(max(time.Until(first), 0))
	}
}

// expire calls due of the connections whose deadlines have passed, and returns how
// many there are.
func (c *Context) expire() int {
	d := &c.deadlines
	d.due.Store(false)
	d.armed = time.Time{}
	now, n := time.Now(), 0
	for len(d.heap) > 0 && !now.Before(d.heap[0].deadline) {
		conn := d.heap[0]
		c.setDeadline(conn, time.Time{})
		conn.due(now)
		n++
	}
	c.armTimer()
	return n
}

// openDeadlines begins with none.
func (c *Context) openDeadlines() {
	d := &c.deadlines
	d.heap, d.base, d.armed = nil, time.Now(), time.Time{}
	d.due.Store(false)
	d.timer = time.AfterFunc(time.Hour, func() {
		d.due.Store(true)
		c.control.Wake()
	})
	d.timer.Stop()
}

// closeDeadlines stops the timer.
func (c *Context) closeDeadlines() {
	if c.deadlines.timer != nil {
		c.deadlines.timer.Stop()
	}
	c.deadlines.timer, c.deadlines.heap = nil, nil
}

// deadlineHeap implements heap.Interface.
type deadlineHeap []*Connection

func (h deadlineHeap) Len() int           { return len(h) }
func (h deadlineHeap) Less(i, j int) bool { return h[i].deadline.Before(h[j].deadline) }

func (h deadlineHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].deadlineIndex, h[j].deadlineIndex = i, j
}

// Push implements heap.Interface.
func (h *deadlineHeap) Push(x any) {
	conn := x.(*Connection)
	conn.deadlineIndex = len(*h)
	*h = append(*h, conn)
}

// Pop implements heap.Interface.
func (h *deadlineHeap) Pop() any {
	last := len(*h) - 1
	conn := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	conn.deadlineIndex = -1
	return conn
}
