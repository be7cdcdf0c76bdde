package transport

import (
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

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
		q.complete()
	}
	status := q.pendingNak.status
	q.pendingNak = pendingNak{}
	q.failRequest(status)
	return true
}
