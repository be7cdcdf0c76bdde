package srd

import (
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/rtt"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// congestion bounds what is under way, like that of a reliable connection. It counts bytes,
// since small packets of many queue pairs share the window.
type congestion struct {
	window     int
	underWay   int
	ackedBytes int // bytes acknowledged for which the window has not grown yet
	recoverAt  uint32
	// overdue says that the timer found a packet lost. That packet leaves even if the window
	// is full: all the packets that fill it may be lost too.
	overdue bool
}

const (
	startWindow = 64 // packets of full length
	minWindow   = 4
	// leastCost is about the space that a small packet takes in a receiver's buffer, in bytes.
	leastCost = 1024
)

// windowLimits are the limits of every context's window, in bytes.
type windowLimits struct {
	start, least, most int
	small              uint32 // what a small packet counts as
}

// newLimits chooses the cost of a small packet such that a window full of them does not exceed
// the sequence numbers that a peer keeps track of.
func newLimits(window int, mtu verbs.MTU) windowLimits {
	small := max(window/(maxWindow/2), leastCost)
	full := max(int(mtu), small)
	return windowLimits{
		start: min(startWindow*full, max(window, 2*minWindow*full)), least: minWindow * full,
		most: max(window, 2*minWindow*full), small: uint32(small),
	}
}

func (l *windowLimits) cost(size uint32) uint32 { return max(size, l.small) }

// grow grows the window by a quarter in each round trip.
func (c *Context) grow() {
	c.window = min(c.window+c.ackedBytes/4, c.t.limits.most)
	c.ackedBytes = 0
}

// shrink notes that a packet was lost. Losses of one round trip count once.
func (c *Context) shrink(psn uint32) {
	if wire.PSNDiff(psn, c.recoverAt) < 0 {
		return
	}
	c.recoverAt = c.next
	c.window = max(c.window/2, c.t.limits.least)
}

// roundTrip estimates the round-trip time (RFC 6298), and how long the peer has been silent.
// Silence counts only while a timer runs, up to its deadline. If a timer is handled later than
// that, this process or machine was stopped, which says nothing about the peer.
type roundTrip struct {
	rtt.Estimate
	expired  uint          // timers expired since the last sample
	timerAt  time.Duration // when the peer should have answered
	counted  time.Duration // silent is counted up to here
	silent   time.Duration // since the peer last answered a request
	repeated int           // packets sent again since then
}

const (
	initialTimeout = 20 * time.Millisecond
	// granularity is the least difference between the time-out and the mean round trip.
	granularity = time.Millisecond
	maxBackoff  = 250 * time.Millisecond
	// peerDeadTimeout is how long a peer may stay silent before its requests fail. A process may be
	// stopped for a second or two.
	peerDeadTimeout = 4 * time.Second
	minRepetitions  = 5
	// reorderMargin is the least margin for packets that overtake others: a packet counts as lost
	// when one that left later by more than the margin has arrived.
	reorderMargin = 200 * time.Microsecond
)

// timeoutAfter returns the time-out after the given number of time-outs in a row.
func (r *roundTrip) timeoutAfter(waits uint) time.Duration {
	t := r.Timeout(initialTimeout, granularity)
	return max(t, min(t<<min(waits, 16), maxBackoff))
}

func (r *roundTrip) sample(t time.Duration) {
	r.Sample(t)
	r.expired = 0
}

// startTimer starts the time in which the peer must answer.
func (c *Context) startTimer(now time.Duration) {
	c.counted = now
	c.timerAt = now + c.timeoutAfter(c.expired)
}

// noteAnswer notes that the peer has answered a request. The peer's own requests and its
// token are no answers.
func (c *Context) noteAnswer(now time.Duration) {
	c.silent, c.repeated = 0, 0
	c.counted = max(c.counted, now)
}

// peerTimeout repeats the oldest packet, or gives the peer up.
func (c *Context) peerTimeout(now time.Duration) {
	c.silent += max(c.timerAt-c.counted, 0)
	if c.silent >= peerDeadTimeout && c.repeated >= minRepetitions {
		c.giveUp()
		return
	}
	c.expired++
	c.repeated++
	// When the oldest packet is acknowledged, that shows which others are lost.
	oldest := c.sent[kindData].first
	if r := c.sent[kindRead].first; oldest == none || r != none && c.slot(r).sentAt < c.slot(oldest).sentAt {
		oldest = r
	}
	if oldest != none {
		c.markLost(oldest)
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
	if c.everReceived {
		why = codeUnresponsive
	}
	c.helloPending, c.helloDue, c.confirmed = false, false, false
	c.silent, c.repeated, c.expired = 0, 0, 0
	c.abort(why, true)
}

// markLost moves a packet under way to those that will be sent again.
func (c *Context) markLost(psn uint32) {
	s := c.slot(psn)
	c.removeInFlight(s)
	s.state = slotLost
	c.push(&c.lost, psn, s)
}

// findLost finds packets that left well before one that has arrived. They will be sent again.
func (c *Context) findLost() {
	margin := max(c.Smoothed/4, reorderMargin)
	for kind := range c.sent {
		for {
			psn := c.sent[kind].first
			if psn == none || c.slot(psn).sentAt+margin >= c.latestArrived[kind] {
				break
			}
			c.markLost(psn)
			c.shrink(psn)
		}
	}
}
