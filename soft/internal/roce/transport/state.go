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
		q.assign(&a, mask)
		q.enter(to)
	}
	return nil
}

func (q *QP) assign(a *verbs.QPAttr, given verbs.QPAttrMask) {
	for _, f := range []struct {
		mask verbs.QPAttrMask
		set  func()
	}{
		{verbs.QPAttrPKeyIndex, func() { q.attr.PKeyIndex = a.PKeyIndex }},
		{verbs.QPAttrPort, func() { q.attr.Port = a.Port }},
		{verbs.QPAttrAccess, func() { q.attr.Access = a.Access }},
		{verbs.QPAttrQKey, func() { q.attr.QKey = a.QKey }},
		{verbs.QPAttrAddress, func() { q.attr.Address = a.Address }},
		{verbs.QPAttrPathMTU, func() { q.attr.PathMTU = a.PathMTU }},
		{verbs.QPAttrDestQPN, func() { q.attr.DestQPN = a.DestQPN }},
		{verbs.QPAttrRQPSN, func() { q.attr.RQPSN = a.RQPSN }},
		{verbs.QPAttrSQPSN, func() { q.attr.SQPSN = a.SQPSN }},
		{verbs.QPAttrTimeout, func() { q.attr.Timeout = a.Timeout }},
		{verbs.QPAttrRetryCount, func() { q.attr.RetryCount = a.RetryCount }},
		{verbs.QPAttrRNRRetry, func() { q.attr.RNRRetry = a.RNRRetry }},
		{verbs.QPAttrMinRNRTimer, func() { q.attr.MinRNRTimer = a.MinRNRTimer }},
		{verbs.QPAttrMaxInitReadAtomic, func() { q.attr.MaxInitReadAtomic = a.MaxInitReadAtomic }},
		{verbs.QPAttrMaxDestReadAtomic, func() { q.attr.MaxDestReadAtomic = a.MaxDestReadAtomic }},
	} {
		if given&f.mask != 0 {
			f.set()
		}
	}
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
