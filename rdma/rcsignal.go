package rdma

import (
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/rdma/internal/life"
	"github.com/verbena-rdma/verbena/verbs"
)

// With descriptors exchanged out of band, a reliable connection has no handshake: a queue pair
// in Ready to Send knows nothing of its peer. So there is a ready signal, which needs only
// verbs, and no receive. One end, the active one, writes 8 bytes that only holders of the
// descriptor know to a word of the other end's memory. When the write is acknowledged, the
// passive end is up; when the word has arrived, the active end is up. A write of no bytes
// would not be noticed, and a send would take a receive.
//
// The end with the larger nonce is the active one. It repeats the signal with the same
// sequence numbers until the peer acknowledges it. If the peer has executed the signal
// already, and its acknowledgement was lost, the peer sees a duplicate.
//
// A peer that closes the connection writes its disconnect notice to the same word, when its
// tasks are done. If it may have executed requests of this end whose acknowledgements were lost,
// it has to serve their repetitions. So it waits for an answer, if the devices of both ends report
// writes to words: when the tasks of this end are done as well, this end writes its own disconnect
// notice.

// rcSignal is the establishment of connections by descriptors.
type rcSignal struct {
	readyWord
	active  bool
	started time.Time
	retryAt time.Time // when to withdraw the signal, or to send the next; zero: when the signal fails
	posted  bool      // a signal was posted since the queue pair was brought up
}

const (
	// shortestSignal and longestSignal are how long a signal may stay unacknowledged, at first
	// and later, if the device would wait for ever.
	shortestSignal = 250 * time.Millisecond
	longestSignal  = time.Second
	// shortestPause and longestPause bound the pause between a signal and the next: a quarter
	// of the time waited so far. So thousands of absent peers cost little, and a late peer
	// loses little time.
	shortestPause = time.Millisecond
	longestPause  = 4 * time.Second
	// If the device does not report writes to the word, the word is polled, less often with
	// time.
	shortestPoll = time.Millisecond
	longestPoll  = 500 * time.Millisecond
)

// within bounds a duration.
func within(d, least, most time.Duration) time.Duration { return min(max(d, least), most) }

// peer implements establishment.
func (r *rcSignal) peer() life.Peer {
	switch {
	case !r.contains(^r.conn.local.nonce):
		return life.Unknown
	case r.disconnectMethod() == life.ByAnsweredNotice:
		return life.Leaving
	}
	return life.Left
}

// polls implements establishment: nothing watches the word.
func (r *rcSignal) polls() bool { return r.cancel == nil }

// handle implements establishment.
func (r *rcSignal) handle(ev event) {
	switch ev.kind {
	case deadlinePassed:
		r.due(ev.now)
	case wordWritten:
		r.readWord()
	case signalCompleted:
		r.signalCompleted(ev.status, ev.vendor)
	case messageReceived:
		r.peerReady()
	}
}

// startTimeout begins the time that the peer has.
func (r *rcSignal) startTimeout() {
	r.started = r.conn.ctx.host.Now()
	r.schedule(r.started)
}

// queuePairUp is called once the queue pair is up and the connection is Connecting, or has
// been made Ready by the peer's signal meanwhile.
func (r *rcSignal) queuePairUp() {
	conn := r.conn
	order := conn.local.compare(&conn.peer)
	if order == 0 {
		conn.ready()
		return
	}
	r.active = order > 0
	now := conn.ctx.host.Now()
	if err := r.watch(); err != nil {
		conn.fail(conn.deviceError(err))
		return
	}
	if r.active && conn.state() == Connecting {
		r.signal(now)
	}
	r.readWord() // the peer may have been first
	r.schedule(now)
}

// readWord reads what the peer has written. While the queue pair cannot send, the word waits, since a
// Ready connection can: readWord is called again when the queue pair is up.
func (r *rcSignal) readWord() {
	if r.conn.state() == Connecting && !r.conn.lane.IsUp() {
		return
	}
	r.clearPending()
	known := r.peer()
	if r.conn.state() == Connecting && (known >= life.Leaving || r.contains(r.conn.local.nonce)) {
		r.peerReady()
	}
	r.conn.ctx.peerDisconnected(r.conn, known)
}

// signal posts the ready signal.
func (r *rcSignal) signal(now time.Time) {
	r.retryAt = time.Time{}
	// A signal is not withdrawn before the device gives up: the peer may have the signal, and
	// may have sent a message since, which a reset would lose.
	if s := r.conn.ctx.set; !s.adaptive && s.timeout == 0 {
		r.retryAt = now.Add(within(now.Sub(r.started), shortestSignal, longestSignal))
	}
	r.posted = true
	r.conn.signal.post(signalReady, r.conn.peer.nonce)
}

// signalCompleted handles the end of a ready signal.
func (r *rcSignal) signalCompleted(status verbs.Status, vendor uint32) {
	conn := r.conn
	switch status {
	case verbs.StatusSuccess:
		conn.ready()
	case verbs.StatusRetryExceeded, verbs.StatusResponseTimeout:
		now := conn.ctx.host.Now()
		r.retryAt = now
		r.schedule(now)
	default:
		err := &TaskError{Op: OpWrite, Status: status, Connection: conn, VendorError: vendor}
		conn.fail(fmt.Errorf("%w: the ready signal to the peer failed: %w", ErrMismatch, err))
	}
}

// due repeats the ready signal, or gives up.
func (r *rcSignal) due(now time.Time) {
	conn := r.conn
	r.readWord()
	if conn.state() != Connecting {
		return
	}
	if limit := conn.ctx.set.ConnectTimeout; limit > 0 && now.Sub(r.started) >= limit {
		conn.fail(conn.timeoutError(limit))
		return
	}
	if r.active && !r.retryAt.IsZero() && !now.Before(r.retryAt) {
		if !r.posted {
			r.signal(now)
		} else if err := r.withdraw(now); err != nil {
			conn.fail(conn.deviceError(err))
			return
		}
	}
	r.schedule(now)
}

// withdraw ends a signal that was not acknowledged. The queue pair is up in the pause that
// follows: if only the acknowledgement was lost, the peer is Ready, and may send.
func (r *rcSignal) withdraw(now time.Time) error {
	r.posted, r.retryAt = false, time.Time{}
	if err := r.conn.reset(); err != nil {
		return err
	}
	r.conn.bringUp(func() {
		if !r.posted {
			r.retryAt = now.Add(within(now.Sub(r.started)/4, shortestPause, longestPause))
			r.schedule(now)
		}
		r.readWord()
	})
	return nil
}

// schedule sets the connection's deadline to what comes first.
func (r *rcSignal) schedule(now time.Time) {
	conn := r.conn
	if conn.state() != Connecting {
		return
	}
	at := r.retryAt
	earlier := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	if limit := conn.ctx.set.ConnectTimeout; limit > 0 {
		earlier(r.started.Add(limit))
	}
	if r.cancel == nil {
		earlier(now.Add(within(now.Sub(r.started)/64, shortestPoll, longestPoll)))
	}
	conn.deadline.Set(at)
}

// tell implements establishment.
func (r *rcSignal) tell() {
	if r.withdrawn() {
		r.signal(r.conn.ctx.host.Now()) // tell is called again when it has completed
		return
	}
	r.conn.signal.post(signalDisconnect, ^r.conn.peer.nonce)
}

// withdrawn reports whether another signal must be the first request: the peer may have
// received the withdrawn signal, and would take any other request in its place for a
// repetition.
func (r *rcSignal) withdrawn() bool { return r.active && !r.posted }

// peerReady makes the connection Ready, since its peer is.
func (r *rcSignal) peerReady() {
	if r.withdrawn() {
		r.signal(r.conn.ctx.host.Now())
	}
	r.conn.ready()
}

// disconnectMethod implements establishment. While Connecting as well: the device may acknowledge
// the peer's signal at any moment, until the queue pair is in error.
func (r *rcSignal) disconnectMethod() life.DisconnectMethod {
	if r.conn.local.answers() && r.conn.peer.answers() {
		return life.ByAnsweredNotice
	}
	return life.ByNotice
}

// queuePairShut implements establishment: the disconnect notice was a write.
func (r *rcSignal) queuePairShut() {}
