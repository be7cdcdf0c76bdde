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

// deadlines is the part of a context that has its deadlines, and a timer for the first. Setting
// one takes time logarithmic in their number.
type deadlines struct {
	core  *core
	heap  deadlineHeap
	timer host.Timer
	base  time.Time   // origin of the times of keepalives
	armed time.Time   // when the timer fires; zero: never
	due   atomic.Bool // the timer has fired
}

// setDeadline sets a deadline; zero for never.
func (d *deadlines) setDeadline(of *deadline, at time.Time) {
	of.at = at
	switch {
	case at.IsZero() && of.place > 0:
		heap.Remove(&d.heap, of.place-1)
	case at.IsZero():
	case of.place > 0:
		heap.Fix(&d.heap, of.place-1)
	default:
		heap.Push(&d.heap, of)
	}
	d.armTimer()
}

// armTimer sets the timer to the first deadline, if the timer would fire later. Firing early
// does no harm.
func (d *deadlines) armTimer() {
	if len(d.heap) == 0 || d.timer == nil {
		return
	}
	first := d.heap[0].at
	if d.armed.IsZero() || first.Before(d.armed) {
		d.armed = first
		d.timer.Reset(max(first.Sub(d.core.host.Now()), 0))
	}
}

// open implements part: it starts without deadlines.
func (d *deadlines) open() error {
	d.heap, d.base, d.armed = nil, d.core.host.Now(), time.Time{}
	d.due.Store(false)
	d.timer = d.core.host.AfterFunc(time.Hour, func() {
		d.due.Store(true)
		d.core.wake()
	})
	d.timer.Stop()
	return nil
}

// busy implements part.
func (d *deadlines) busy() bool { return d.due.Load() }

// work implements part: it handles the deadlines that have passed.
func (d *deadlines) work() int {
	if !d.due.Load() {
		return 0
	}
	d.due.Store(false)
	d.armed = time.Time{}
	defer d.armTimer() // a function of the program may panic
	now, n := d.core.host.Now(), 0
	for len(d.heap) > 0 && !now.Before(d.heap[0].at) {
		first := d.heap[0]
		d.setDeadline(first, time.Time{})
		first.owner.due(now)
		n++
	}
	return n
}

// close implements part: it stops the timer.
func (d *deadlines) close() error {
	if d.timer != nil {
		d.timer.Stop()
	}
	d.timer, d.heap = nil, nil
	return nil
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
