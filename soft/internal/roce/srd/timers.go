package srd

import "time"

// timer is the time at which a context must be handled. It holds a copy of the time, so that
// comparing timers reads no context.
type timer struct {
	at time.Duration
	c  *Context
}

// timers is a heap of the contexts that wait for an answer, or for a receive of the peer. The
// earliest comes first. Idle contexts are not in it.
type timers []timer

// noTimer is the place of a context that is not in the heap.
const noTimer = -1

func (h timers) put(i int, x timer) {
	h[i] = x
	x.c.timerIndex = i
}

// up moves an entry up past later parents, and returns its place.
func (h timers) up(i int) int {
	x := h[i]
	for i > 0 {
		parent := (i - 1) / 2
		if h[parent].at <= x.at {
			break
		}
		h.put(i, h[parent])
		i = parent
	}
	h.put(i, x)
	return i
}

// down moves an entry down past earlier children.
func (h timers) down(i int) {
	x := h[i]
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if child+1 < len(h) && h[child+1].at < h[child].at {
			child++
		}
		if x.at <= h[child].at {
			break
		}
		h.put(i, h[child])
		i = child
	}
	h.put(i, x)
}

// set sets the time at which a context is handled.
func (h *timers) set(c *Context, at time.Duration) {
	if c.timerIndex == noTimer {
		c.timerIndex = len(*h)
		*h = append(*h, timer{})
	}
	(*h)[c.timerIndex] = timer{at, c}
	h.down(h.up(c.timerIndex))
}

// remove removes a context, if it is in the heap.
func (h *timers) remove(c *Context) {
	i, last := c.timerIndex, len(*h)-1
	if i == noTimer {
		return
	}
	moved := (*h)[last]
	(*h)[last] = timer{}
	*h = (*h)[:last]
	c.timerIndex = noTimer
	if i < last {
		h.put(i, moved)
		h.down(h.up(i))
	}
}

// schedule makes sure that a context is handled by its deadline. It may be handled earlier, so
// that its entry does not move with every acknowledgement.
func (t *Transport) schedule(c *Context) {
	at := c.deadline()
	if at != 0 && (c.timerIndex == noTimer || at < t.timers[c.timerIndex].at) {
		t.timers.set(c, at)
	}
}

// Deadline returns when Expire must be called; zero means never.
func (t *Transport) Deadline() time.Duration {
	at := time.Duration(0)
	if len(t.timers) > 0 {
		at = max(t.timers[0].at, 1)
	}
	if first := t.all.Front(); first != nil && (at == 0 || first.Value.checkAt < at) {
		at = first.Value.checkAt
	}
	return at
}

// Expire handles the timers that are due.
func (t *Transport) Expire(now time.Duration) {
	for len(t.timers) > 0 && t.timers[0].at <= now {
		c := t.timers[0].c
		at := c.deadline()
		if at != 0 && at <= now {
			c.timeout(now)
			at = c.deadline()
		}
		if at == 0 {
			t.timers.remove(c)
		} else {
			t.timers.set(c, max(at, now+1))
		}
	}
	t.expireIdle(now)
}

// checkInterval is how often the device checks whether a context is still used.
const checkInterval = idleTime / 4

// expireIdle forgets contexts that have been idle for idleTime.
func (t *Transport) expireIdle(now time.Duration) {
	for first := t.all.Front(); first != nil && first.Value.checkAt <= now; first = t.all.Front() {
		c := first.Value
		if c.outstanding == 0 && max(c.receivedAt, c.usedAt)+idleTime <= now {
			t.forget(c)
		} else {
			t.all.Pop()
			t.checkLater(c, now)
		}
	}
}

func (t *Transport) checkLater(c *Context, now time.Duration) {
	c.checkAt = now + checkInterval
	t.all.Push(&c.allNode)
}
