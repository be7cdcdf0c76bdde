package srd

import (
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/rtt"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// congestion bounds what is under way, like that of a reliable connection. It counts bytes,
// since small packets of many queue pairs share it.
type congestion struct {
	window    int
	underWay  int
	grown     int // acknowledged, and the window has not grown for it
	recoverAt uint32
	// overdue: the timer has found a packet lost, which is to leave whatever else is
	// under way: of that, nothing may be left.
	overdue bool
}

const (
	startWindow = 64 // packets of full length
	minWindow   = 4
	// leastCost is about what a small packet takes of a receiver's buffer.
	leastCost = 1024
)

// windowLimits are what the window of every context keeps to, in bytes.
type windowLimits struct {
	start, least, most int
	small              uint32 // what a small packet counts as
}

// newLimits makes sure that the small packets that fill a window are no more than a peer
// tells apart.
func newLimits(window int, mtu verbs.MTU) windowLimits {
	small := max(window/(maxWindow/2), leastCost)
	full := max(int(mtu), small)
	return windowLimits{
		start: min(startWindow*full, max(window, 2*minWindow*full)), least: minWindow * full,
		most: max(window, 2*minWindow*full), small: uint32(small),
	}
}

func (l *windowLimits) cost(size uint32) uint32 { return max(size, l.small) }

// grow has the window grow by a quarter in each round trip.
func (c *Context) grow() {
	c.window = min(c.window+c.grown/4, c.t.limits.most)
	c.grown = 0
}

// shrink notes that a packet was lost. Losses of one round trip count once.
func (c *Context) shrink(psn uint32) {
	if wire.PSNDiff(psn, c.recoverAt) < 0 {
		return
	}
	c.recoverAt = c.next
	c.window = max(c.window/2, c.t.limits.least)
}

// roundTrip estimates the time to the peer and back (RFC 6298), and how long the peer has
// been silent. Time is counted while a timer runs and not beyond its end: when a timer is
// looked at late, this process or machine stood still, which says nothing of the peer.
type roundTrip struct {
	rtt.Estimate
	expired  uint          // timers since the last sample
	timerAt  time.Duration // when the peer ought to have answered
	counted  time.Duration // until when silent is counted
	silent   time.Duration // since the peer last answered a request
	repeated int           // packets sent again since then
}

const (
	initialTimeout = 20 * time.Millisecond
	// granularity is the least that the time-out exceeds the mean round trip by.
	granularity = time.Millisecond
	maxBackoff  = 250 * time.Millisecond
	// patience is how long the peer may be without an answer. A process may be stopped for a
	// second or two.
	patience       = 4 * time.Second
	minRepetitions = 5
	// reordering is how much later than another a packet may leave and arrive before
	// that one counts as lost.
	reordering = 200 * time.Microsecond
)

// timeoutAfter is how long an answer is waited for when so many waits were in vain.
func (r *roundTrip) timeoutAfter(waits uint) time.Duration {
	t := r.Timeout(initialTimeout, granularity)
	return max(t, min(t<<min(waits, 16), maxBackoff))
}

func (r *roundTrip) sample(t time.Duration) {
	r.Sample(t)
	r.expired = 0
}

// startTimer gives the peer time to answer.
func (c *Context) startTimer(now time.Duration) {
	c.counted = now
	c.timerAt = now + c.timeoutAfter(c.expired)
}

// heardAnswer notes that the peer answers requests. That it sends its own, or its token, says
// nothing of that.
func (c *Context) heardAnswer(now time.Duration) {
	c.silent, c.repeated = 0, 0
	c.counted = max(c.counted, now)
}

// peerTimeout sends something again, or gives the peer up.
func (c *Context) peerTimeout(now time.Duration) {
	c.silent += max(c.timerAt-c.counted, 0)
	if c.silent >= patience && c.repeated >= minRepetitions {
		c.giveUp()
		return
	}
	c.expired++
	c.repeated++
	// The oldest packet shows which others are lost, when it is acknowledged.
	oldest := c.sent[pushed].first
	if r := c.sent[read].first; oldest == none || r != none && c.slot(r).sentAt < c.slot(oldest).sentAt {
		oldest = r
	}
	if oldest != none {
		c.lose(oldest)
		c.overdue = true
		if c.expired > 1 {
			c.shrink(oldest)
		}
	}
	c.startTimer(now)
}

// giveUp fails all requests to a peer that does not answer.
func (c *Context) giveUp() {
	c.t.counters.Timeouts++
	why := codeUnreachable
	if c.answered {
		why = codeUnresponsive
	}
	c.asking, c.ask, c.greeted = false, false, false
	c.silent, c.repeated, c.expired = 0, 0, 0
	c.abort(why, true)
}

// lose has a packet that is under way sent again.
func (c *Context) lose(psn uint32) {
	s := c.slot(psn)
	c.land(s)
	s.state = missing
	c.push(&c.lost, psn, s)
}

// findLost has packets sent again that left well before one that has arrived.
func (c *Context) findLost() {
	margin := max(c.Smoothed/4, reordering)
	for kind := range c.sent {
		for {
			psn := c.sent[kind].first
			if psn == none || c.slot(psn).sentAt+margin >= c.newest[kind] {
				break
			}
			c.lose(psn)
			c.shrink(psn)
		}
	}
}
