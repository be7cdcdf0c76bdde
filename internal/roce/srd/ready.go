package srd

import (
	"container/heap"
	"time"
)

// readyList holds the contexts that have something to send, in the order in which they
// may.
type readyList struct{ first, last *Context }

func (l *readyList) empty() bool { return l.first == nil }

func (l *readyList) push(c *Context) {
	if c.listed {
		return
	}
	c.listed, c.before, c.after = true, l.last, nil
	if l.last == nil {
		l.first = c
	} else {
		l.last.after = c
	}
	l.last = c
}

func (l *readyList) remove(c *Context) {
	if !c.listed {
		return
	}
	if c.before == nil {
		l.first = c.after
	} else {
		c.before.after = c.after
	}
	if c.after == nil {
		l.last = c.before
	} else {
		c.after.before = c.before
	}
	c.listed, c.before, c.after = false, nil, nil
}

// timers is a heap of contexts, the one to be looked at next first.
type timers []*Context

func (h timers) Len() int           { return len(h) }
func (h timers) Less(i, j int) bool { return h[i].wakeAt < h[j].wakeAt }
func (h timers) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}
func (h *timers) Push(x any) {
	c := x.(*Context)
	c.place = len(*h)
	*h = append(*h, c)
}
func (h *timers) Pop() any {
	last := len(*h) - 1
	c := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	c.place = noPlace
	return c
}

const noPlace = -1

// schedule sees that a context is looked at by its deadline. It may be looked at earlier
// than that: so its entry does not move with every acknowledgement.
func (t *Transport) schedule(c *Context) {
	at := c.deadline()
	switch {
	case c.place == noPlace:
		c.wakeAt = at
		heap.Push(&t.timers, c)
	case at < c.wakeAt:
		c.wakeAt = at
		heap.Fix(&t.timers, c.place)
	}
}

// Deadline is when Expire is to be called; zero means never.
func (t *Transport) Deadline() time.Duration {
	if len(t.timers) == 0 {
		return 0
	}
	return max(t.timers[0].wakeAt, 1)
}

// Expire does what is due.
func (t *Transport) Expire(now time.Duration) {
	for len(t.timers) > 0 && t.timers[0].wakeAt <= now {
		c := t.timers[0]
		if !c.closed && c.deadline() <= now {
			c.timeout(now)
		}
		if c.closed {
			heap.Remove(&t.timers, c.place)
			continue
		}
		c.wakeAt = max(c.deadline(), now+1)
		heap.Fix(&t.timers, c.place)
	}
}
