package roce

import "time"

// heldAcks keeps acknowledgements back for a program that is about to answer: they leave
// with what it posts next, in one system call, and the peer is woken once. A program that
// does not answer releases them with its next look at an empty completion queue.
//
// Their queue pairs are in shard.ready meanwhile.
type heldAcks struct {
	// program: a program acts next: it polls, or has been told of a completion.
	program   bool
	heldUntil time.Duration // zero: none are held
	since     time.Duration
	notBefore time.Duration // none are held before that
}

const (
	// ackHoldTime is how long acknowledgements are held at most.
	ackHoldTime = time.Millisecond
	// promptAnswer is how long a program may take to its answer without that the peer's
	// estimate of the round trip suffers.
	promptAnswer = 100 * time.Microsecond
	// holdPenalty times the time that a slow program has taken passes before
	// acknowledgements are held again.
	holdPenalty = 16
)

// holdAcks reports whether there is nothing to be sent now: nothing at all, or only
// acknowledgements that can wait for the program.
func (s *shard) holdAcks(now time.Duration) bool {
	h := &s.acks
	switch {
	case h.heldUntil != 0:
		if now >= h.heldUntil {
			return false
		}
	case !h.program || now < h.notBefore:
		return false
	}
	if d := s.device; s == d.main && (d.srd.Ready() || d.srdReplied) {
		return false
	}
	for q := s.ready.first; q != nil; {
		next := q.ready.next
		nothing, ack := q.transport.Owes()
		if !nothing && !ack {
			return false
		}
		if nothing {
			s.ready.remove(q)
		}
		s.schedule(q)
		q = next
	}
	if h.heldUntil == 0 && !s.ready.empty() {
		h.since, h.heldUntil = now, now+ackHoldTime
		s.noteDeadline(h.heldUntil)
	}
	return true
}

// released is called when everything is sent.
func (h *heldAcks) released(now time.Duration) {
	if h.heldUntil == 0 {
		return
	}
	if took := now - h.since; took > promptAnswer {
		h.notBefore = now + holdPenalty*min(took, ackHoldTime)
	}
	h.heldUntil = 0
}

// releaseAcks has the queue pair send what is held of it. The lock is held.
func (q *queuePair) releaseAcks() {
	s := q.shard.Load()
	if s.acks.heldUntil == 0 || !q.ready.listed {
		return
	}
	now := s.device.now()
	q.path.transmit(q.transport, now, allowance{packets: sendBudget, copied: roundBytes})
	s.transmit(now)
}
