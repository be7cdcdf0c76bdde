package rdma

import (
	"container/heap"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/internal/host"
)

// deadline is when an object of a context is due.
type deadline struct {
	at    time.Time // zero: never
	place int       // in the context's heap, from 1; zero: not in the heap
	owner interface {
		// due is called when the deadline has passed; the deadline is then never.
		due(now time.Time)
	}
}

// deadlines are the deadlines of a context, and the timer for the first. Setting one takes
// time logarithmic in their number.
type deadlines struct {
	heap  deadlineHeap
	timer host.Timer
	base  time.Time   // origin of the times of keepalives
	armed time.Time   // when the timer fires; zero: never
	due   atomic.Bool // the timer has fired
}

// setDeadline sets a deadline; zero for never.
func (c *base) setDeadline(d *deadline, at time.Time) {
	h := &c.deadlines.heap
	d.at = at
	switch {
	case at.IsZero() && d.place > 0:
		heap.Remove(h, d.place-1)
	case at.IsZero():
	case d.place > 0:
		heap.Fix(h, d.place-1)
	default:
		heap.Push(h, d)
	}
	c.armTimer()
}

// armTimer sets the timer to the first deadline, if the timer would fire later. Firing early
// does no harm.
func (c *base) armTimer() {
	d := &c.deadlines
	if len(d.heap) == 0 || d.timer == nil {
		return
	}
	first := d.heap[0].at
	if d.armed.IsZero() || first.Before(d.armed) {
		d.armed = first
		d.timer.Reset(max(first.Sub(c.host.Now()), 0))
	}
}

// expire handles the deadlines that have passed, and returns how many.
func (c *base) expire() int {
	d := &c.deadlines
	d.due.Store(false)
	d.armed = time.Time{}
	now, n := c.host.Now(), 0
	for len(d.heap) > 0 && !now.Before(d.heap[0].at) {
		first := d.heap[0]
		c.setDeadline(first, time.Time{})
		first.owner.due(now)
		n++
	}
	c.armTimer()
	return n
}

// openDeadlines starts without deadlines.
func (c *base) openDeadlines() {
	d := &c.deadlines
	d.heap, d.base, d.armed = nil, c.host.Now(), time.Time{}
	d.due.Store(false)
	d.timer = c.host.AfterFunc(time.Hour, func() {
		d.due.Store(true)
		c.wake()
	})
	d.timer.Stop()
}

// closeDeadlines stops the timer.
func (c *base) closeDeadlines() {
	if c.deadlines.timer != nil {
		c.deadlines.timer.Stop()
	}
	c.deadlines.timer, c.deadlines.heap = nil, nil
}

// deadlineHeap implements heap.Interface.
type deadlineHeap []*deadline

func (h deadlineHeap) Len() int           { return len(h) }
func (h deadlineHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }

func (h deadlineHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i+1, j+1
}

// Push implements heap.Interface.
func (h *deadlineHeap) Push(x any) {
	d := x.(*deadline)
	*h = append(*h, d)
	d.place = len(*h)
}

// Pop implements heap.Interface.
func (h *deadlineHeap) Pop() any {
	last := len(*h) - 1
	d := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	d.place = 0
	return d
}
