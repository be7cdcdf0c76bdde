package transport

import (
	"fmt"
	"math"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// QP is a queue pair. Its fields are grouped by purpose, each group in a file of its own.
// Fields that every packet needs come first: with thousands of queue pairs, each packet meets
// one that is in no cache.
type QP struct {
	identity
	state verbs.QPState
	held  heldAck
	counted
	bounds
	shared
	queues
	requester
	retransmission
	adaptive
	responder
	keys
	congestionControl
	incoming
	outgoing
	attr verbs.QPAttr
	pacer
	hooks
}

// Num returns the queue pair number.
func (q *QP) Num() uint32 { return q.num }

// State returns the present state.
func (q *QP) State() verbs.QPState { return q.state }

// Attr returns the attributes.
func (q *QP) Attr() verbs.QPAttr {
	a := q.attr
	a.State = q.state
	return a
}

// PostRecv posts receives to the queue pair's own receive queue.
func (q *QP) PostRecv(wrs []verbs.RecvWR) (int, error) {
	if q.service == wire.ServiceXRC {
		return 0, fmt.Errorf("post receive on queue pair %#x: an XRC queue pair has no receives; post to a shared receive queue of the XRC domain: %w", q.num, verbs.ErrInvalid)
	}
	if q.rq.shared {
		return 0, fmt.Errorf("post receive on queue pair %#x: it has a shared receive queue; post to that queue: %w", q.num, verbs.ErrInvalid)
	}
	if q.state == verbs.QPReset {
		return 0, fmt.Errorf("post receive on queue pair %#x in state %v: the state must be Init or later: %w", q.num, q.state, verbs.ErrState)
	}
	n, err := q.rq.Post(wrs)
	if q.state == verbs.QPError {
		q.flush()
	}
	return n, err
}

// Unreadable says that an Output could not read the payload of a packet that Send had
// accepted. If the packet is of a request, the request fails. If it is a response, the queue
// pair fails and refuses the read.
func (q *QP) Unreadable(p *wire.Packet) {
	if p.Opcode.IsReadResponse() {
		if q.state == verbs.QPError {
			return
		}
		q.failAfterNak(wire.NakRemoteOperation)
		q.responses.push(response{kind: ackResponse, psn: p.PSN, msn: q.msn, syndrome: wire.Nak(wire.NakRemoteOperation)})
		return
	}
	for i := q.sq.head; i != q.sq.tail; i++ {
		if w := q.sq.at(i); !w.local() && wire.PSNDiff(w.last, p.PSN) >= 0 {
			q.noteFault(w)
			return
		}
	}
}

// noteFault notes that memory of a request cannot be accessed. The request fails when those
// before it are complete.
func (q *QP) noteFault(w *sendWQE) {
	w.fault = verbs.StatusLocalProtectionError
	q.rewind(q.unaPSN) // earlier packets may not have asked for an acknowledgement
}

// Transmit sends at most budget packets to out, and reports whether more could leave at once.
// Datagrams go to the outputs of their address handles instead.
func (q *QP) Transmit(out Output, now time.Duration, budget int) bool {
	if q.notify && budget > 0 {
		budget--
		q.sendNotification(out, now)
	}
	if !q.reliable {
		return q.sendUnreliable(out, now, budget)
	}
	if q.held.ahead != 0 {
		if n := q.requestsAhead(now); n > 0 {
			left, more := q.sendRequests(out, now, min(budget, n))
			if now < q.held.until && (more && n >= budget || !more && q.windowFullInMessage()) {
				return more
			}
			budget -= min(budget, n) - left
		}
		q.held = heldAck{}
	}
	budget = q.sendResponses(out, now, budget)
	_, more := q.sendRequests(out, now, budget)
	return more || q.responses.Len() > 0 && q.responsesWaitUntil == 0
}

// heldAck says how many request packets leave before the acknowledgement that waits: see HoldAck.
// The zero value: none.
type heldAck struct {
	ahead int
	until time.Duration
}

// AllButLast is for HoldAck: all packets of the requests that are posted but for the last one.
const AllButLast = math.MaxInt

// HoldAck lets at most that many request packets leave before the acknowledgement that waits. Those
// that have no room in the budget or in the window of a call of Transmit leave in later calls before
// that time; zero: the acknowledgement leaves in the next call.
//
// An empty request stays behind the acknowledgement: it is smaller, and in a train of packets only
// the last may be smaller than the others. So does a fenced request: it may end the connection, and
// the peer must get the acknowledgement first.
func (q *QP) HoldAck(ahead int, until time.Duration) { q.held = heldAck{ahead, until} }

// ReleaseAck undoes HoldAck, and reports whether an acknowledgement may have been held.
func (q *QP) ReleaseAck() bool {
	held := q.held.ahead != 0
	q.held = heldAck{}
	return held
}

// requestsAhead returns how many request packets leave before the acknowledgement that waits.
func (q *QP) requestsAhead(now time.Duration) int {
	if !q.onlyAckWaits() || q.sendIdx == q.sq.tail || q.sq.at(q.sendIdx).length == 0 || q.held.until != 0 && now >= q.held.until {
		return 0
	}
	if q.held.ahead == AllButLast {
		return int(wire.PSNDiff(q.nextPSN, q.sendPSN)-1) / int(q.largest>>q.mtuShift) // of the largest size
	}
	return q.held.ahead
}

// windowFullInMessage reports whether the next packet belongs to a message that is under way, and
// has no room in the window. The peer acknowledges such a message before it is complete.
func (q *QP) windowFullInMessage() bool {
	if !q.sending() || q.rnrUntil != 0 || q.sendIdx == q.sq.tail {
		return false
	}
	w := q.sq.at(q.sendIdx)
	return !w.responds() && q.sendPSN != w.first && int(wire.PSNDiff(q.sendPSN, q.unaPSN)) >= q.congestionWindow
}

// OnlyAcknowledges reports whether the only thing to send is a positive acknowledgement of a
// complete message.
func (q *QP) OnlyAcknowledges() bool {
	return q.reliable && q.onlyAckWaits() && !q.notify && q.sendIdx == q.sq.tail && q.probe == noProbe
}

// onlyAckWaits reports whether the only response that waits is a positive acknowledgement of a
// complete message.
func (q *QP) onlyAckWaits() bool {
	if q.message != noMessage || q.responses.Len() != 1 {
		return false
	}
	r := q.responses.first()
	return r.kind == ackResponse && r.syndrome.Kind() == wire.KindAck
}

// Requests reports whether requests of this end are not acknowledged.
func (q *QP) Requests() bool { return q.sq.head != q.sq.tail }

// NextPSN returns the PSN that the first packet of the next request will have.
func (q *QP) NextPSN() uint32 { return q.nextPSN }

// Complete reports whether all requests are complete that were posted before NextPSN returned
// that PSN.
func (q *QP) Complete(nextPSN uint32) bool {
	return !q.Requests() || wire.PSNDiff(q.sq.at(q.sq.head).first, nextPSN) >= 0
}

// Deadline returns when Timeout must be called; zero means never.
func (q *QP) Deadline() time.Duration {
	if !q.reliable {
		return q.paceUntil
	}
	at := q.ackDeadline
	for _, other := range [...]time.Duration{q.rnrUntil, q.requestsWaitUntil, q.responsesWaitUntil} {
		if other != 0 && (at == 0 || other < at) {
			at = other
		}
	}
	return at
}

// Close releases what the queue pair holds of the state shared by its device, and ends what
// its windows grant to the peer. It is the last call.
func (q *QP) Close() {
	q.endRNRWait()
	q.revoked(nil)
	q.endWindows()
	q.dropReceives()
}

// reset clears everything, without completions (IBTA 10.3.1.1).
func (q *QP) reset() {
	q.revoked(nil)
	q.endWindows()
	q.sends.Drop(q.sq.Len())
	q.sq.empty()
	q.dropReceives()
	if !q.rq.shared {
		q.receives.Drop(q.rq.Len())
		q.rq.empty()
	}
	q.endRNRWait()
	asked := q.responseEnds
	asked.ends.empty()
	q.requester, q.retransmission, q.adaptive, q.pacer = requester{responseEnds: asked}, retransmission{}, adaptive{}, pacer{}
	q.congestionControl = congestionControl{}
	q.responder = responder{responses: q.responses, current: Receive{segs: q.current.segs[:0]}, executed: q.executed}
	q.granted = GrantedKeys{}
	q.responses.empty()
	q.executed.empty()
	q.attr, q.largest, q.lossless, q.held = verbs.QPAttr{}, 0, false, heldAck{}
}

// fail puts the queue pair in the error state and flushes it (IBTA 10.3.1.7).
func (q *QP) fail() {
	if q.state == verbs.QPError {
		return
	}
	q.state = verbs.QPError
	q.nakPending = false
	q.revoked(nil)
	q.responses.dropReads()
	q.ackDeadline, q.rnrUntil, q.paceUntil, q.requestsWaitUntil, q.responsesWaitUntil = 0, 0, 0, 0, 0
	q.endRNRWait()
	q.flush()
	if q.rq.shared && q.service != wire.ServiceXRC {
		q.event(verbs.EventQPLastWQEReached)
	}
}

// flush completes all posted requests with StatusFlushed. Receives on a shared queue stay
// there for its other queue pairs.
func (q *QP) flush() {
	q.flushSends()
	if q.inReceive {
		q.failReceive(verbs.StatusFlushed)
	}
	if q.rq.shared {
		return
	}
	for q.rq.Take(&q.current) {
		q.failReceive(verbs.StatusFlushed)
	}
}

// flushSends flushes the send queue. A request that the peer is known to have refused
// completes with the reason. A request before it, whose response was lost, is flushed.
func (q *QP) flushSends() {
	for q.sq.head != q.sq.tail {
		status := verbs.StatusFlushed
		if q.pendingNak.refusesRequest(q.sq.at(q.sq.head)) {
			status, q.pendingNak = q.pendingNak.status, pendingNak{}
		}
		q.failSend(status)
	}
}

// failSend completes the oldest request with an error.
func (q *QP) failSend(status verbs.Status) {
	w := q.sq.pop()
	q.sendCQ.Complete(verbs.WC{ID: w.wr.ID, Status: status, Opcode: CompletionOpcodes[w.wr.Op], QPN: q.num}, q.sends.Add(), true)
}

// outgoing is the packet that is being sent.
type outgoing struct {
	packet  wire.Packet
	pieces  [][]byte
	scratch [8]byte
	bounce  []byte // see grant.read and Segments.Gather
}
