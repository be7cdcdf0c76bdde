package fabrictest

import (
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/fabric"
)

// Clock is virtual time. It makes calls in the order of their times, and those of one time in
// the order in which they were asked for.
type Clock struct {
	// Now is the time. Set it to let time pass without anything happening.
	Now time.Duration

	calls    fabric.Queue[func()]
	order    uint64
	machines []machine
	standing int // steps since time has passed
}

// machine is a state machine that has a deadline.
type machine struct {
	deadline func() time.Duration
	expire   func()
}

// forever is later than anything.
const forever = time.Duration(1<<63 - 1)

// maxStanding is how many steps may take no time.
const maxStanding = 1 << 20

// At calls f at a time, or now if that has passed.
func (c *Clock) At(at time.Duration, f func()) {
	c.order++
	c.calls.Push(max(at, c.Now), c.order, f)
}

// After calls f when that much time has passed.
func (c *Clock) After(d time.Duration, f func()) { c.At(c.Now+d, f) }

// Watch calls expire whenever the deadline of a state machine has come. deadline is asked
// before each step; zero: there is none.
func (c *Clock) Watch(deadline func() time.Duration, expire func()) {
	c.machines = append(c.machines, machine{deadline, expire})
}

// Carry puts a packet of n bytes on a link now, and calls arrive for each of its arrivals.
// capable: the packet can be marked.
func (c *Clock) Carry(l *fabric.Link, n int, capable bool, arrive func(a fabric.Arrival)) {
	arrivals, count := l.Carry(c.Now, n, capable)
	for _, a := range arrivals[:count] {
		c.At(a.At, func() { arrive(a) })
	}
}

// Step makes the next thing happen. It returns false if there is none.
func (c *Clock) Step() bool { return c.step(forever) }

// Run makes everything happen. It returns false if something is left after limit.
func (c *Clock) Run(limit time.Duration) bool {
	for end := c.Now + limit; c.step(end); {
		continue
	}
	_, _, some := c.next()
	return !some
}

// RunUntil makes things happen until a condition holds. It returns false if it does not hold
// after limit, or after everything has happened.
func (c *Clock) RunUntil(limit time.Duration, holds func() bool) bool {
	for end := c.Now + limit; !holds(); {
		if !c.step(end) {
			return false
		}
	}
	return true
}

// Pass lets time pass, and makes happen what is due in it.
func (c *Clock) Pass(d time.Duration) {
	end := c.Now + d
	for c.step(end) {
		continue
	}
	c.Now = end
}

// step makes the next thing happen unless it is later than end.
func (c *Clock) step(end time.Duration) bool {
	at, expire, some := c.next()
	if !some || at > end {
		return false
	}
	if c.standing++; at > c.Now {
		c.Now, c.standing = at, 0
	}
	if c.standing > maxStanding {
		panic(fmt.Sprintf("fabrictest: time stands still at %v", c.Now))
	}
	if expire == nil {
		expire = c.calls.Pop()
	}
	expire()
	return true
}

// next returns the time of what happens next, and, unless it is a call, what is called then.
func (c *Clock) next() (at time.Duration, expire func(), some bool) {
	for i := range c.machines {
		if d := c.machines[i].deadline(); d != 0 && (expire == nil || d < at) {
			at, expire = d, c.machines[i].expire
		}
	}
	if c.calls.Len() > 0 && (expire == nil || c.calls.Next() <= at) {
		return c.calls.Next(), nil, true
	}
	return at, expire, expire != nil
}
