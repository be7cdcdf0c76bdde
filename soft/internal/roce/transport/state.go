package transport

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/internal/rules"
	"github.com/verbena-rdma/verbena/verbs"
)

// MaxReadAtomic bounds the reads and atomics of a queue pair in each direction.
const MaxReadAtomic = 128

var limits = rules.Limits{Ports: 1, PKeys: 1, InitReadAtomic: MaxReadAtomic, DestReadAtomic: MaxReadAtomic}

// Modify changes attributes and state; a refused change changes nothing.
func (q *QP) Modify(a verbs.QPAttr, mask verbs.QPAttrMask) error {
	to := q.state
	if mask&verbs.QPAttrState != 0 {
		to = a.State
	}
	err := rules.CheckTransition(q.kind, q.state, &a, mask, limits)
	if err == nil && q.kind != verbs.UD && q.state == verbs.QPSendQueueDrained && to == q.state {
		err = errors.New("there is no such transition on this device")
	}
	if err != nil {
		return fmt.Errorf("modify queue pair %#x, %v to %v: %w: %w", q.num, q.state, to, err, verbs.ErrInvalid)
	}
	switch to {
	case verbs.QPReset:
		q.state = verbs.QPReset
		q.reset()
	case verbs.QPError:
		q.fail()
	default:
		rules.Assign(&q.attr, &a, mask)
		q.enter(to)
	}
	return nil
}

// enter sets the state, and prepares the requester and the responder for it.
func (q *QP) enter(to verbs.QPState) {
	from := q.state
	q.state = to
	switch {
	case from == verbs.QPInitialized && to == verbs.QPReadyToReceive:
		q.setPath(q.PathMTU(), 0)
		q.startResponder()
	case from == verbs.QPReadyToReceive && to == verbs.QPReadyToSend:
		q.setPath(q.PathMTU(), q.attr.Timeout)
		q.startRequester()
	case from == verbs.QPSendQueueError && to == verbs.QPReadyToSend:
		q.sendPSN = q.nextPSN // past what was flushed
	}
}

// PathMTU returns the MTU of the path. Datagrams have no fixed path; theirs is the port's MTU.
func (q *QP) PathMTU() verbs.MTU {
	if q.kind == verbs.UD {
		return q.portMTU
	}
	return q.attr.PathMTU
}
