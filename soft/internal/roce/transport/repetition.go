package transport

import (
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// repetition is when a requester sends again, how many retries are left, and why it will fail.
type repetition struct {
	retries    int   // left, in units of costOfGap
	rnrRetries uint8 // left
	// gapPSN is the response last found missing. Later responses in the same round do not
	// rewind again.
	gapPSN      uint32
	gapKnown    bool
	gapNext     bool          // the response right after the missing one has come
	ackDeadline time.Duration // zero: not running
	rnrUntil    time.Duration // zero: not waiting
	notReady    notReady
	refusal     refusal
}

// The cost of a repetition. The retry count bounds the time-outs (IBTA 9.7.5.1.3). A gap that
// the peer reports, or that its responses show, costs less: the peer is alive, and a path that
// reorders packets causes several such reports for one loss.
const (
	costOfTimeout = 8
	costOfGap     = 1
)

// Waiting counts the queue pairs that wait for their peers to post a receive and have no limit
// on retries. All queue pairs under one lock share one.
type Waiting struct{ n int }

// A "receiver not ready" NAK names the least time to wait (IBTA 9.7.5.2.8). One queue pair
// that retries after just that time costs little. Thousands that do so, every 640 µs by
// default, would leave the device no time for anything else. So each waits longer, the more of
// them there are.
const (
	// repetitionShare is how much longer each queue pair waits for every other one. Together
	// they send 5,000 messages a second.
	repetitionShare = 200 * time.Microsecond
	// maxRepetitionWait bounds how late the requester notices that a receive was posted.
	maxRepetitionWait = time.Second
)

// notReady is a requester's share in Waiting.
type notReady struct {
	waits bool          // counted in Waiting
	since time.Duration // when the first NAK came
}

// crowdedWait returns how long a queue pair waits for a receive before it tries again. It is
// no longer than the queue pair has waited already, however many others there are.
func (q *QP) crowdedWait(now time.Duration) time.Duration {
	if !q.notReady.waits {
		q.notReady = notReady{waits: true, since: now}
		q.waiting.n++
	}
	return min(now-q.notReady.since, time.Duration(q.waiting.n-1)*repetitionShare, maxRepetitionWait)
}

// endNotReady notes that the queue pair no longer waits for a receive.
func (q *QP) endNotReady() {
	if q.notReady.waits {
		q.notReady.waits = false
		q.waiting.n--
	}
}

// refusal is a fatal NAK that has arrived while the response to an earlier read or atomic is
// missing. The peer has executed the earlier request; its response may be late or lost. The
// NAK says nothing about that request, only about the one refused.
type refusal struct {
	psn    uint32 // that the NAK names
	status verbs.Status
}

var refusalStatus = [...]verbs.Status{
	wire.NakInvalidRequest:  verbs.StatusRemoteInvalidRequest,
	wire.NakRemoteAccess:    verbs.StatusRemoteAccessError,
	wire.NakRemoteOperation: verbs.StatusRemoteOperationError,
}

func (r *refusal) known() bool { return r.status != verbs.StatusSuccess }

// at reports whether the packet at psn is the one refused.
func (r *refusal) at(psn uint32) bool { return r.known() && psn == r.psn }

// of reports whether the request is the one refused.
func (r *refusal) of(w *sendWQE) bool {
	return r.known() && !w.local() && wire.PSNAdd(r.psn, -int(w.first)) <= wire.PSNAdd(w.last, -int(w.first))
}

// receiveRefusal handles a fatal NAK. If an earlier response is missing, the requester asks
// for it again, and sends nothing from the refused request on. A peer in error does not
// answer, so the requester asks no longer than it asks a peer whose socket is gone.
func (q *QP) receiveRefusal(psn uint32, status verbs.Status, now time.Duration) {
	if !q.refusal.known() || wire.PSNDiff(psn, q.refusal.psn) < 0 {
		q.refusal = refusal{psn: psn, status: status}
	}
	if q.failRefused() {
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
	q.retries = min(q.retries, costOfTimeout)
	q.PeerUnreachable(now)
}

// failRefused fails the refused request and reports true, unless an earlier response is
// missing. The NAK has acknowledged all other earlier requests.
func (q *QP) failRefused() bool {
	i := q.sq.head
	for ; i != q.sq.tail && !q.refusal.of(q.sq.at(i)); i++ {
		if q.sq.at(i).responds() {
			return false
		}
	}
	if i == q.sq.tail { // the peer has answered the request that it had refused
		q.refusal = refusal{}
		return false
	}
	for q.sq.head != i {
		q.complete(q.sq.at(q.sq.head))
	}
	status := q.refusal.status
	q.refusal = refusal{}
	q.failRequest(status)
	return true
}
