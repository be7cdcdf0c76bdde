package roce

import (
	"math"
	"time"
)

// readyList holds the queue pairs that have something to send, in the order in which they may
// send. A queue pair is in at most one such list. Every operation takes constant time.
type readyList struct{ first, last *queuePair }

// readyLinks is a queue pair's place in the list.
type readyLinks struct {
	listed         bool
	previous, next *queuePair
}

func (l *readyList) empty() bool { return l.first == nil }

// push appends a queue pair, unless it is in the list.
func (l *readyList) push(q *queuePair) {
	if q.ready.listed {
		return
	}
	q.ready = readyLinks{listed: true, previous: l.last}
	if l.last == nil {
		l.first = q
	} else {
		l.last.ready.next = q
	}
	l.last = q
}

// remove removes a queue pair, if it is in the list.
func (l *readyList) remove(q *queuePair) {
	r := q.ready
	if !r.listed {
		return
	}
	if r.previous == nil {
		l.first = r.next
	} else {
		r.previous.ready.next = r.next
	}
	if r.next == nil {
		l.last = r.previous
	} else {
		r.next.ready.previous = r.previous
	}
	q.ready = readyLinks{}
}

// never is later than any deadline.
const never = time.Duration(math.MaxInt64)

// timers is a heap of queue pairs, ordered by deadline, the earliest first. Every operation
// takes logarithmic time.
type timers []*queuePair

// timer is a queue pair's deadline, and its place in the heap.
type timer struct {
	at    time.Duration
	place int // index plus 1; zero: not in the heap
}

// set sets the deadline of the queue pair.
func (h *timers) set(q *queuePair, at time.Duration) {
	if q.timer.place == 0 {
		*h = append(*h, q)
		q.timer.place = len(*h)
	}
	q.timer.at = at
	h.down(h.up(q.timer.place - 1))
}

// remove removes a queue pair, if it is in the heap.
func (h *timers) remove(q *queuePair) {
	if q.timer.place == 0 {
		return
	}
	i, last := q.timer.place-1, len(*h)-1
	h.swap(i, last)
	(*h)[last] = nil
	*h = (*h)[:last]
	q.timer = timer{}
	if i < last {
		h.down(h.up(i))
	}
}

func (h timers) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].timer.place, h[j].timer.place = i+1, j+1
}

// up moves an entry up past its later parents, and returns its index.
func (h timers) up(i int) int {
	for i > 0 {
		parent := (i - 1) / 2
		if h[parent].timer.at <= h[i].timer.at {
			break
		}
		h.swap(i, parent)
		i = parent
	}
	return i
}

// down moves an entry down past its earlier children.
func (h timers) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(h) {
			return
		}
		if child+1 < len(h) && h[child+1].timer.at < h[child].timer.at {
			child++
		}
		if h[i].timer.at <= h[child].timer.at {
			return
		}
		h.swap(i, child)
		i = child
	}
}

// schedule makes expire call the queue pair's Timeout at its deadline. The entry in the heap
// may be earlier than the deadline, and is corrected when it expires, so that the heap does
// not change with every acknowledgement.
func (s *shard) schedule(q *queuePair) {
	at := q.transport.Deadline()
	if at == 0 || q.timer.place != 0 && q.timer.at <= at {
		return
	}
	s.mu.timers.set(q, at)
	s.noteDeadline(at)
}

// expire handles what is due and finds the next deadline.
func (s *shard) expire(now time.Duration) {
	for len(s.mu.timers) > 0 && s.mu.timers[0].timer.at <= now {
		q := s.mu.timers[0]
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
			s.mu.timers.remove(q)
		} else {
			s.mu.timers.set(q, max(at, now+1))
		}
	}
	s.mu.deadline = 0
	if len(s.mu.timers) > 0 {
		s.noteDeadline(s.mu.timers[0].timer.at)
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
	if !s.mu.unacknowledged.empty() {
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
	for _, e := range s.endpoints {
		if e.wakes() && at < e.wakesAt {
			e.wakesAt = at
			e.socket.SetDeadline(s.device.base.Add(at))
		}
	}
}
