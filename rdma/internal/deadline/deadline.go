// Package deadline has the deadlines of a context.
package deadline

import (
	"container/heap"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/internal/host"
)

// Deadline is when an object of a context is due.
type Deadline struct {
	all   *Deadlines
	at    time.Time // zero: never
	place int       // in the heap, from 1; zero: not in the heap
	due   func(now time.Time)
}

// Deadlines are the deadlines of a context, with a timer for the first. Setting one takes time
// logarithmic in their number.
type Deadlines struct {
	heap  deadlineHeap
	host  host.Host
	timer host.Timer
	armed time.Time   // when the timer fires; zero: never
	due   atomic.Bool // the timer has fired
}

// Init makes a deadline, which is never. due is called when it has passed, and is never again.
func (d *Deadline) Init(all *Deadlines, due func(now time.Time)) { d.all, d.due = all, due }

// At is when the deadline is; zero: never.
func (d *Deadline) At() time.Time { return d.at }

// Set sets the deadline; zero for never.
func (d *Deadline) Set(at time.Time) {
	d.at = at
	switch {
	case at.IsZero() && d.place > 0:
		heap.Remove(&d.all.heap, d.place-1)
	case at.IsZero():
	case d.place > 0:
		heap.Fix(&d.all.heap, d.place-1)
	default:
		heap.Push(&d.all.heap, d)
	}
	d.all.armTimer()
}

// armTimer sets the timer to the first deadline, if the timer would fire later. Firing early
// does no harm.
func (d *Deadlines) armTimer() {
	if len(d.heap) == 0 || d.timer == nil {
		return
	}
	first := d.heap[0].at
	if d.armed.IsZero() || first.Before(d.armed) {
		d.armed = first
		d.timer.Reset(max(first.Sub(d.host.Now()), 0))
	}
}

// Open starts without deadlines. wake is called, on any goroutine, when one has passed.
func (d *Deadlines) Open(h host.Host, wake func()) {
	d.host, d.heap, d.armed = h, nil, time.Time{}
	d.due.Store(false)
	d.timer = h.AfterFunc(time.Hour, func() {
		d.due.Store(true)
		wake()
	})
	d.timer.Stop()
}

// Busy reports whether a deadline may have passed.
func (d *Deadlines) Busy() bool { return d.due.Load() }

// Work handles the deadlines that have passed, and returns how many.
func (d *Deadlines) Work() int {
	if !d.due.Load() {
		return 0
	}
	d.due.Store(false)
	d.armed = time.Time{}
	defer d.armTimer() // a function of the program may panic
	now, n := d.host.Now(), 0
	for len(d.heap) > 0 && !now.Before(d.heap[0].at) {
		first := d.heap[0]
		first.Set(time.Time{})
		first.due(now)
		n++
	}
	return n
}

// Close stops the timer.
func (d *Deadlines) Close() {
	if d.timer != nil {
		d.timer.Stop()
	}
	d.timer, d.heap = nil, nil
}

// deadlineHeap implements heap.Interface.
type deadlineHeap []*Deadline

func (h deadlineHeap) Len() int           { return len(h) }
func (h deadlineHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }

func (h deadlineHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i+1, j+1
}

// Push implements heap.Interface.
func (h *deadlineHeap) Push(x any) {
	d := x.(*Deadline)
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
