package rdma

import (
	"cmp"
	"time"

	"github.com/verbena-rdma/verbena/verbs"
)

// repeatedSignal is the establishment of UC connections by descriptors. UC acknowledges
// nothing, so each end writes to the other's word repeatedly, until it has seen that the other
// end is up: first the peer's nonce, and, when the peer's signal has come, the complement of
// the nonce. An end is Ready when a signal or a message of the peer has come: then both queue
// pairs are up.
//
// The complement tells the peer to stop repeating its signal. Since it may be lost too, a
// Ready end repeats its own for as long as the peer may wait for it: Config.ConnectTimeout. UC
// has no goodbye: nothing tells the peer that a connection is closed.
type repeatedSignal struct {
	readyWord
	began time.Time
	pause time.Duration // before the next signal
	again time.Time     // when to send the next one; zero: no more
	known bool          // the peer knows that this end is up
	until time.Time     // when a Ready end stops sending signals
}

// await implements descriptorSignal.
func (r *repeatedSignal) await() {
	r.began, r.pause = time.Now(), shortestPause
	r.schedule(r.began)
}

// begin implements descriptorSignal.
func (r *repeatedSignal) begin() {
	if err := r.watch(); err != nil {
		r.conn.fail(r.conn.deviceError(err))
		return
	}
	if r.conn.local.compare(&r.conn.peer) == 0 {
		r.conn.toItself, r.known = true, true
		r.conn.ready()
		return
	}
	r.send(time.Now())
	r.signaled() // the peer may have been first
}

// send writes to the peer's word, and sets when to do so again.
func (r *repeatedSignal) send(now time.Time) {
	conn := r.conn
	if conn.signal.purpose == signalNone {
		value := conn.peer.nonce
		if conn.state == Ready {
			value = ^value
		}
		conn.signal.post(signalReady, value)
	}
	r.again = now.Add(r.pause)
	r.pause = min(2*r.pause, longestSignal)
	if conn.state == Ready && (r.known || r.again.After(r.until)) {
		r.again = time.Time{}
	}
	r.schedule(now)
}

// signaled implements establishment.
func (r *repeatedSignal) signaled() {
	r.taken()
	r.known = r.known || r.arrived(^r.conn.local.nonce)
	if r.conn.state == Connecting && (r.known || r.arrived(r.conn.local.nonce)) {
		r.received()
	}
}

// received implements establishment: the peer is up.
func (r *repeatedSignal) received() {
	r.conn.ready()
	if r.conn.state == Ready {
		now := time.Now()
		r.pause, r.until = shortestPause, now.Add(cmp.Or(max(r.conn.ctx.set.ConnectTimeout, 0), defaultConnectTimeout))
		r.send(now)
	}
}

// due implements establishment.
func (r *repeatedSignal) due(now time.Time) {
	conn := r.conn
	r.signaled()
	switch {
	case conn.state == Connecting:
		if limit := conn.ctx.set.ConnectTimeout; limit > 0 && now.Sub(r.began) >= limit {
			conn.fail(conn.timeoutError(limit))
			return
		}
	case conn.state != Ready:
		return
	}
	if !r.again.IsZero() && !now.Before(r.again) {
		r.send(now)
	} else {
		r.schedule(now)
	}
}

// schedule sets the connection's deadline to what comes first.
func (r *repeatedSignal) schedule(now time.Time) {
	conn := r.conn
	at := r.again
	if conn.state == Connecting {
		if limit := conn.ctx.set.ConnectTimeout; limit > 0 && (at.IsZero() || r.began.Add(limit).Before(at)) {
			at = r.began.Add(limit)
		}
		if poll := now.Add(within(now.Sub(r.began)/64, shortestPoll, longestPoll)); r.cancel == nil && poll.Before(at) {
			at = poll
		}
	}
	if conn.state == Connecting || conn.state == Ready {
		conn.ctx.setDeadline(&conn.deadline, at)
	}
}

// sent implements establishment: a signal that was sent proves nothing about the peer.
func (r *repeatedSignal) sent(status verbs.Status, vendor uint32) {
	if status != verbs.StatusSuccess {
		r.conn.failedTask(status, &TaskError{Op: OpWrite, Status: status, Connection: r.conn, VendorError: vendor})
	}
}

// sayGoodbye implements establishment: the connection ends when its tasks have left.
func (r *repeatedSignal) sayGoodbye() { r.conn.signal.post(signalLast, 0) }

func (r *repeatedSignal) goodbyeWhileConnecting() bool { return false }
func (r *repeatedSignal) goodbyeArrived() bool         { return false }
func (r *repeatedSignal) ended()                       {}
