package transport

import (
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// refusal is a fatal NAK that has come while the response to a read or atomic before it is
// missing. The peer has executed that one, and its response may be late or lost: the NAK says
// nothing of it, and all of the request refused.
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

// at reports whether a request's packet is the one refused.
func (r *refusal) at(psn uint32) bool { return r.known() && psn == r.psn }

// of reports whether the request is the one refused.
func (r *refusal) of(w *sendWQE) bool {
	return r.known() && !w.local() && wire.PSNAdd(r.psn, -int(w.first)) <= wire.PSNAdd(w.last, -int(w.first))
}

// receiveRefusal takes a fatal NAK. Where a response before it is missing, the requester asks
// for that again, and sends nothing from the refused request on. A peer in error does not answer,
// so it is asked for no longer than one whose socket is gone.
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
		q.retryExceeded() // else it would wait for ever
		return
	}
	q.retries = min(q.retries, costOfTimeout)
	q.PeerUnreachable(now)
}

// failRefused fails the refused request and reports true, unless a response before it is
// missing. The NAK has acknowledged what else comes before.
func (q *QP) failRefused() bool {
	i := q.sq.head
	for ; i != q.sq.tail && !q.refusal.of(q.sq.at(i)); i++ {
		if q.sq.at(i).responds() {
			return false
		}
	}
	if i == q.sq.tail { // the peer has answered what it had refused
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
