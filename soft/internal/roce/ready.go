package roce

// readyList holds the queue pairs that have something to send, in the order in
// which they may. A queue pair is in one such list at most. Every operation takes constant time.
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

// remove takes a queue pair out, if it is in the list.
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
