package roce

import (
	"math"
	"time"
)

// never is later than any deadline.
const never = time.Duration(math.MaxInt64)

// schedule makes expire call the queue pair's Timeout at its deadline. The entry in the heap
// may be earlier than the deadline, and is corrected when it expires, so that the heap does
// not change with every acknowledgement.
func (s *shard) schedule(q *queuePair) {
	at := q.transport.Deadline()
	if at == 0 || q.timer.Queued() && q.timer.At() <= at {
		return
	}
	s.mu.timers.Set(&q.timer, at)
	s.noteDeadline(at)
}

// expire handles what is due and finds the next deadline.
func (s *shard) expire(now time.Duration) {
	for t := s.mu.timers.Due(now); t != nil; t = s.mu.timers.Due(now) {
		q := t.Owner
		at := q.transport.Deadline()
		if at != 0 && at <= now {
			if q.path != nil && q.path.peerBehind() {
				q.transport.PeerBehind(now)
			}
			q.transport.Timeout(now)
			s.activate(q)
			at = q.transport.Deadline()
		}
		if at == 0 {
			s.mu.timers.Remove(t)
		} else {
			s.mu.timers.Set(t, max(at, now+1))
		}
	}
	s.mu.deadline = 0
	if first := s.mu.timers.First(); first != nil {
		s.noteDeadline(first.At())
	}
	if d := s.device; s == d.main.shard {
		d.main.srd.Expire(now)
		if at := d.main.srd.Deadline(); at != 0 {
			s.noteDeadline(at)
		}
		if d.mu.services != nil {
			d.mu.services.Expire(now)
			d.admission.MADs.Expire(now)
		}
	}
	for _, e := range s.endpoints {
		e.noteDeadline()
		if until := e.entry.Expire(now); until != 0 {
			s.noteDeadline(until)
		}
	}
	if s.mu.unacknowledged.Len() > 0 {
		s.noteDeadline(now + maxAckDelay)
	}
}

// noteDeadline makes the shard make progress at that time. The deadline kept is a lower bound:
// it may be early, never late.
func (s *shard) noteDeadline(at time.Duration) {
	if s.mu.deadline != 0 && s.mu.deadline <= at {
		return
	}
	s.mu.deadline = at
	if at < s.mu.wakesAt {
		s.mu.wakesAt = at
		s.sockets.SetDeadline(s.device.base.Add(at))
	}
}
