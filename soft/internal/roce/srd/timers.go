package srd

import "time"

// schedule makes sure that a context is handled by its deadline. It may be handled earlier, so
// that its entry does not move with every acknowledgement.
func (t *Transport) schedule(c *Context) {
	at := c.deadline()
	if at != 0 && (!c.timer.Queued() || at < c.timer.At()) {
		t.timers.Set(&c.timer, at)
	}
}

// Deadline returns when Expire must be called; zero means never.
func (t *Transport) Deadline() time.Duration {
	at := time.Duration(0)
	if first := t.timers.First(); first != nil {
		at = max(first.At(), 1)
	}
	if first := t.all.Front(); first != nil && (at == 0 || first.Value.checkAt < at) {
		at = first.Value.checkAt
	}
	return at
}

// Expire handles the timers that are due.
func (t *Transport) Expire(now time.Duration) {
	for due := t.timers.Due(now); due != nil; due = t.timers.Due(now) {
		c := due.Owner
		at := c.deadline()
		if at != 0 && at <= now {
			c.timeout(now)
			at = c.deadline()
		}
		if at == 0 {
			t.timers.Remove(due)
		} else {
			t.timers.Set(due, max(at, now+1))
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
