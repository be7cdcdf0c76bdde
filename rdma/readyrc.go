package rdma

import (
	"fmt"
	"time"

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
// A peer that closes the connection writes its goodbye to the same word.

// readySignal is the establishment of connections by descriptors.
type readySignal struct {
	readyWord
	active  bool
	began   time.Time
	again   time.Time // when to take the signal back, or to send the next; zero: when the signal fails
	sending bool      // a signal was posted since the queue pair was brought up
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

// goodbyeArrived implements establishment.
func (r *readySignal) goodbyeArrived() bool { return r.arrived(^r.conn.local.nonce) }

// await begins the time that the peer has.
func (r *readySignal) await() {
	r.began = time.Now()
	r.schedule(r.began)
}

// begin is called once the queue pair is up and the connection is Connecting, or has been made
// Ready by the peer's signal meanwhile.
func (r *readySignal) begin() {
	conn := r.conn
	order := conn.local.compare(&conn.peer)
	if order == 0 {
		conn.toItself = true
		conn.ready()
		return
	}
	r.active = order > 0
	now := time.Now()
	if err := r.watch(); err != nil {
		conn.fail(conn.deviceError(err))
		return
	}
	if r.active && conn.state == Connecting {
		r.signal(now)
	}
	r.signaled() // the peer may have been first
	r.schedule(now)
}

// signaled implements establishment.
func (r *readySignal) signaled() {
	r.taken()
	goodbye := r.goodbyeArrived()
	if r.conn.state == Connecting && (goodbye || r.arrived(r.conn.local.nonce)) {
		r.peerReady()
	}
	if goodbye {
		r.conn.ctx.peerLeft(r.conn)
	}
}

// signal posts the ready signal.
func (r *readySignal) signal(now time.Time) {
	r.again = time.Time{}
	// A signal is not taken back before the device gives up: the peer may have the signal, and
	// may have sent a message since, which a reset would lose.
	if s := r.conn.ctx.set; !s.adaptive && s.timeout == 0 {
		r.again = now.Add(within(now.Sub(r.began), shortestSignal, longestSignal))
	}
	r.sending = true
	r.conn.signal.post(signalReady, r.conn.peer.nonce)
}

// sent implements establishment.
func (r *readySignal) sent(status verbs.Status, vendor uint32) {
	conn := r.conn
	switch status {
	case verbs.StatusSuccess:
		conn.ready()
	case verbs.StatusRetryExceeded, verbs.StatusResponseTimeout:
		now := time.Now()
		r.again = now
		r.schedule(now)
	default:
		err := &TaskError{Op: OpWrite, Status: status, Connection: conn, VendorError: vendor}
		conn.fail(fmt.Errorf("%w: the peer did not take the ready signal: %w", ErrMismatch, err))
	}
}

// due implements establishment.
func (r *readySignal) due(now time.Time) {
	conn := r.conn
	r.signaled()
	if conn.state != Connecting {
		return
	}
	if limit := conn.ctx.set.ConnectTimeout; limit > 0 && now.Sub(r.began) >= limit {
		conn.fail(conn.timeoutError(limit))
		return
	}
	if r.active && !r.again.IsZero() && !now.Before(r.again) {
		if !r.sending {
			r.signal(now)
		} else if err := r.takeBack(now); err != nil {
			conn.fail(conn.deviceError(err))
			return
		}
	}
	r.schedule(now)
}

// takeBack ends a signal that was not acknowledged. The queue pair is up in the pause that
// follows: if only the acknowledgement was lost, the peer is Ready, and may send.
func (r *readySignal) takeBack(now time.Time) error {
	r.sending, r.again = false, time.Time{}
	if err := r.conn.reset(); err != nil {
		return err
	}
	r.conn.bringUp(func() {
		if !r.sending {
			r.again = now.Add(within(now.Sub(r.began)/4, shortestPause, longestPause))
			r.schedule(now)
		}
	})
	return nil
}

// schedule sets the connection's deadline to what comes first.
func (r *readySignal) schedule(now time.Time) {
	conn := r.conn
	if conn.state != Connecting {
		return
	}
	at := r.again
	earlier := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	if limit := conn.ctx.set.ConnectTimeout; limit > 0 {
		earlier(r.began.Add(limit))
	}
	if r.cancel == nil {
		earlier(now.Add(within(now.Sub(r.began)/64, shortestPoll, longestPoll)))
	}
	conn.ctx.setDeadline(&conn.deadline, at)
}

// goodbyeWhileConnecting implements establishment: the device may acknowledge the peer's signal at
// any moment, until the queue pair is in error.
func (r *readySignal) goodbyeWhileConnecting() bool { return true }

// sayGoodbye implements establishment.
func (r *readySignal) sayGoodbye() {
	if r.signalTakenBack() {
		r.conn.signal.goodbye = true
		r.signal(time.Now())
		return
	}
	r.conn.signal.post(signalGoodbye, ^r.conn.peer.nonce)
}

// signalTakenBack reports whether another signal must be the first request: the peer may have
// received the signal that was taken back, and would take any other request in its place for a
// repetition.
func (r *readySignal) signalTakenBack() bool { return r.active && !r.sending }

// received implements establishment.
func (r *readySignal) received() { r.peerReady() }

// peerReady makes the connection Ready, since its peer is.
func (r *readySignal) peerReady() {
	if r.signalTakenBack() {
		r.signal(time.Now())
	}
	r.conn.ready()
}

// ended implements establishment. The goodbye was a write.
func (r *readySignal) ended() {}
