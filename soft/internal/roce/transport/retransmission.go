package transport

import (
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// retransmission is when a requester sends again, how many retries are left, and why it will fail.
type retransmission struct {
	retries    int   // left, in units of gapCost
	rnrRetries uint8 // left
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

// RNRWaiters counts the queue pairs that wait for their peers to post a receive and have no limit
// on retries. All queue pairs under one lock share one.
type RNRWaiters struct{ n int }

// A "receiver not ready" NAK names the least time to wait (IBTA 9.7.5.2.8). One queue pair
// that retries after just that time costs little. Thousands that do so, every 640 µs by
// default, would leave the device no time for anything else. So each waits longer, the more of
// them there are.
const (
	// rnrWaitShare is how much longer each queue pair waits for every other one. Together
	// they send 5,000 messages a second.
	rnrWaitShare = 200 * time.Microsecond
	// maxRNRWait bounds how late the requester notices that a receive was posted.
	maxRNRWait = time.Second
)

// rnrWait is a requester's share in RNRWaiters.
type rnrWait struct {
	counted bool          // counted in RNRWaiters
	since   time.Duration // when the first NAK came
}

// sharedRNRWait returns how long a queue pair waits for a receive before it tries again. It is
// no longer than the queue pair has waited already, however many others there are.
func (q *QP) sharedRNRWait(now time.Duration) time.Duration {
	if !q.rnrWait.counted {
		q.rnrWait = rnrWait{counted: true, since: now}
		q.rnrWaiters.n++
	}
	return min(now-q.rnrWait.since, time.Duration(q.rnrWaiters.n-1)*rnrWaitShare, maxRNRWait)
}

// endRNRWait notes that the queue pair no longer waits for a receive.
func (q *QP) endRNRWait() {
	if q.rnrWait.counted {
		q.rnrWait.counted = false
		q.rnrWaiters.n--
	}
}

// pendingNak is a fatal NAK that has arrived while the response to an earlier read or atomic is
// missing. The peer has executed the earlier request; its response may be late or lost. The
// NAK says nothing about that request, only about the one refused.
type pendingNak struct {
	psn    uint32 // that the NAK names
	status verbs.Status
}

var nakStatus = [...]verbs.Status{
	wire.NakInvalidRequest:  verbs.StatusRemoteInvalidRequest,
	wire.NakRemoteAccess:    verbs.StatusRemoteAccessError,
	wire.NakRemoteOperation: verbs.StatusRemoteOperationError,
}

func (r *pendingNak) set() bool { return r.status != verbs.StatusSuccess }

// matches reports whether the packet at psn is the one refused.
func (r *pendingNak) matches(psn uint32) bool { return r.set() && psn == r.psn }

// refusesRequest reports whether the request is the one refused.
func (r *pendingNak) refusesRequest(w *sendWQE) bool {
	return r.set() && !w.local() && wire.PSNAdd(r.psn, -int(w.first)) <= wire.PSNAdd(w.last, -int(w.first))
}

// receiveFatalNak handles a fatal NAK. If an earlier response is missing, the requester asks
// for it again, and sends nothing from the refused request on. A peer in error does not
// answer, so the requester asks no longer than it asks a peer whose socket is gone.
func (q *QP) receiveFatalNak(psn uint32, status verbs.Status, now time.Duration) {
	if !q.pendingNak.set() || wire.PSNDiff(psn, q.pendingNak.psn) < 0 {
		q.pendingNak = pendingNak{psn: psn, status: status}
	}
	if q.failNakedRequest() {
		return
	}
	q.acknowledge(psn, now)
	if !q.sending() {
		return
	}
	if q.ackDeadline == 0 {
		q.retryExceeded() // otherwise it would wait for ever
		return
	}
	q.retries = min(q.retries, timeoutCost)
	q.PeerUnreachable(now)
}

// failNakedRequest fails the refused request and reports true, unless an earlier response is
// missing. The NAK has acknowledged all other earlier requests.
func (q *QP) failNakedRequest() bool {
	i := q.sq.head
	for ; i != q.sq.tail && !q.pendingNak.refusesRequest(q.sq.at(i)); i++ {
		if q.sq.at(i).responds() {
			return false
		}
	}
	if i == q.sq.tail { // the peer has answered the request that it had refused
		q.pendingNak = pendingNak{}
		return false
	}
	for q.sq.head != i {
		q.complete(q.sq.at(q.sq.head))
	}
	status := q.pendingNak.status
	q.pendingNak = pendingNak{}
	q.failRequest(status)
	return true
}
