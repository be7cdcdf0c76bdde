package transport

import (
	"time"

	"github.com/verbena-rdma/verbena/verbs"
)

// retransmission is when a requester sends again, how many retries are left, and why it will
// fail.
type retransmission struct {
	retries    int   // left, in units of gapCost
	rnrRetries uint8 // left
	timeouts   uint8 // since the peer last responded, up to 2; without Config.Adaptive
	// postponed is for how long PeerBehind has postponed time-outs since the peer last responded.
	postponed time.Duration
	// gapPSN is the response last found missing. Later responses in the same round do not
	// rewind again.
	gapPSN      uint32
	gapKnown    bool
	gapNext     bool          // the response right after the missing one has come
	ackDeadline time.Duration // zero: not running
	rnrUntil    time.Duration // zero: not waiting
	rnrWait     rnrWait
	pendingNak  pendingNak
}

// The cost of a repetition. The retry count bounds the time-outs (IBTA 9.7.5.1.3). A gap that
// the peer reports, or that its responses show, costs less: the peer is alive, and a path that
// reorders packets causes several such reports for one loss.
const (
	timeoutCost = 8
	gapCost     = 1
)

// retry sends again from psn on, or fails the oldest request if it has been tried often enough
// (IBTA 9.9.2.4.2).
func (q *QP) retry(psn uint32, cost int, now time.Duration) {
	switch {
	case q.adapts:
		if q.timedOut() {
			q.retryExceeded()
			return
		}
	case q.retries < cost:
		q.retryExceeded()
		return
	default:
		q.retries -= cost
	}
	q.goBack(psn, cost == gapCost, now)
	q.peerDropped, q.oldestMissing = true, true
	q.armAckTimer(now)
}

// PeerBehind says that the peer has not taken the latest packets yet, on a path that loses none. A
// time-out that is due then neither counts nor repeats anything, for Config.SilenceTimeout at most.
// An adapter, too, responds while the program that uses it is stopped. PeerBehind does nothing
// when the queue pair adapts: then SilenceTimeout applies anyway.
func (q *QP) PeerBehind(now time.Duration) {
	if q.adapts || q.ackDeadline == 0 || now < q.ackDeadline || q.postponed >= q.silenceTimeout {
		return
	}
	q.postponed += q.ackTimeout
	q.ackDeadline = now + q.ackTimeout
}

// alive restores the retries after time-outs and gaps: the peer responds, if only that it is not
// ready.
func (q *QP) alive() {
	q.retries, q.timeouts, q.postponed = int(q.attr.RetryCount)*timeoutCost, 0, 0
}

// progressed restores all retries: the peer has acknowledged something.
func (q *QP) progressed() {
	q.alive()
	q.rnrRetries = q.attr.RNRRetry
}

func (q *QP) retryExceeded() {
	q.counters.RetryExceeded++
	q.failRequest(verbs.StatusRetryExceeded)
}

// goBack begins another round, from psn on, because a packet is lost. detected says that later
// packets have shown the loss; otherwise no answer came in time.
func (q *QP) goBack(psn uint32, detected bool, now time.Duration) {
	q.noteRetransmission()
	q.shrinkWindow(detected, now)
	q.rewind(psn)
}

// rewind makes psn the next packet to be sent. It is the oldest that is not acknowledged.
func (q *QP) rewind(psn uint32) {
	q.sendPSN = psn
	q.sendIdx = q.sq.head
	q.sinceAckReq = 0
	q.gapKnown = false
	q.measuring, q.peerDropped, q.probe, q.oldestProbed = false, false, noProbe, false
	// Everything that was asked for at or after psn will be asked for again.
	q.readsSent = 0
}
