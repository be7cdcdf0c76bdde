package rdma

import (
	"cmp"
	"time"

	"github.com/verbena-rdma/verbena/rdma/internal/life"
	"github.com/verbena-rdma/verbena/verbs"
)

// ucSignal is the establishment of UC connections by descriptors. UC acknowledges
// nothing, so each end writes to the other's word repeatedly, until it has seen that the other
// end is up: first the peer's nonce, and, when the peer's signal has come, the complement of
// the nonce. An end is Ready when a signal or a message of the peer has come: then both queue
// pairs are up.
//
// The complement tells the peer to stop repeating its signal. Since it may be lost too, a
// Ready end repeats its own for as long as the peer may wait for it: Config.ConnectTimeout. UC
// has no disconnect notice: nothing tells the peer that a connection is closed.
type ucSignal struct {
	readyWord
	started     time.Time
	pause       time.Duration // before the next signal
	resendAt    time.Time     // when to send the next one; zero: no more
	peerKnows   bool          // the peer knows that this end is up
	resendUntil time.Time     // when a Ready end stops sending signals
}

// startTimeout implements descriptorSignal.
func (r *ucSignal) startTimeout() {
	r.started, r.pause = r.conn.ctx.host.Now(), shortestPause
	r.schedule(r.started)
}

// queuePairUp implements descriptorSignal.
func (r *ucSignal) queuePairUp() {
	if err := r.watch(); err != nil {
		r.conn.fail(r.conn.deviceError(err))
		return
	}
	if r.conn.local.compare(&r.conn.peer) == 0 {
		r.peerKnows = true
		r.conn.ready()
		return
	}
	r.send(r.conn.ctx.host.Now())
	r.readWord() // the peer may have been first
}

// send writes to the peer's word, and sets when to do so again.
func (r *ucSignal) send(now time.Time) {
	conn := r.conn
	if conn.signal.purpose == signalNone {
		value := conn.peer.nonce
		if conn.state() == Ready {
			value = ^value
		}
		conn.signal.post(signalReady, value)
	}
	r.resendAt = now.Add(r.pause)
	r.pause = min(2*r.pause, longestSignal)
	if conn.state() == Ready && (r.peerKnows || r.resendAt.After(r.resendUntil)) {
		r.resendAt = time.Time{}
	}
	r.schedule(now)
}

// handle implements establishment.
func (r *ucSignal) handle(ev event) {
	switch ev.kind {
	case deadlinePassed:
		r.due(ev.now)
	case wordWritten:
		r.readWord()
	case signalCompleted:
		r.signalCompleted(ev.status, ev.vendor)
	case messageReceived:
		r.peerUp()
	}
}

// readWord reads what the peer has written, once the queue pair can send: see rcSignal.readWord.
func (r *ucSignal) readWord() {
	if r.conn.state() == Connecting && !r.conn.lane.IsUp() {
		return
	}
	r.clearPending()
	r.peerKnows = r.peerKnows || r.contains(^r.conn.local.nonce)
	if r.conn.state() == Connecting && (r.peerKnows || r.contains(r.conn.local.nonce)) {
		r.peerUp()
	}
}

// peerUp makes the connection Ready: a signal or a message of the peer has come.
func (r *ucSignal) peerUp() {
	r.conn.ready()
	if r.conn.state() == Ready {
		now := r.conn.ctx.host.Now()
		r.pause, r.resendUntil = shortestPause, now.Add(cmp.Or(max(r.conn.ctx.set.ConnectTimeout, 0), defaultConnectTimeout))
		r.send(now)
	}
}

// due repeats the signal, or gives up.
func (r *ucSignal) due(now time.Time) {
	conn := r.conn
	r.readWord()
	switch {
	case conn.state() == Connecting:
		if limit := conn.ctx.set.ConnectTimeout; limit > 0 && now.Sub(r.started) >= limit {
			conn.fail(conn.timeoutError(limit))
			return
		}
	case conn.state() != Ready:
		return
	}
	if !r.resendAt.IsZero() && !now.Before(r.resendAt) {
		r.send(now)
	} else {
		r.schedule(now)
	}
}

// schedule sets the connection's deadline to what comes first.
func (r *ucSignal) schedule(now time.Time) {
	conn := r.conn
	at := r.resendAt
	if conn.state() == Connecting {
		if limit := conn.ctx.set.ConnectTimeout; limit > 0 && (at.IsZero() || r.started.Add(limit).Before(at)) {
			at = r.started.Add(limit)
		}
		if poll := now.Add(within(now.Sub(r.started)/64, shortestPoll, longestPoll)); r.cancel == nil && poll.Before(at) {
			at = poll
		}
	}
	if conn.state() == Connecting || conn.state() == Ready {
		conn.deadline.Set(at)
	}
}

// signalCompleted handles the end of a signal: a signal that was sent proves nothing about the peer.
func (r *ucSignal) signalCompleted(status verbs.Status, vendor uint32) {
	if status != verbs.StatusSuccess {
		r.conn.failedTask(status, &TaskError{Op: OpWrite, Status: status, Connection: r.conn, VendorError: vendor})
	}
}

func (r *ucSignal) peer() life.Peer { return life.Unknown }
func (r *ucSignal) polls() bool     { return false }
func (r *ucSignal) tell()           {}

// disconnectMethod implements establishment: the connection ends when its tasks have left.
func (r *ucSignal) disconnectMethod() life.DisconnectMethod {
	if r.conn.state() == Ready {
		return life.Silent
	}
	return life.Abort
}

func (r *ucSignal) queuePairShut() {}
