package roce

import "time"

// delayedAck sends the acknowledgement of a message together with the program's reply, in one
// system call and one train of packets. Both then pass the network stack once, and the reply
// does not wait behind the acknowledgement. It is used for programs that recently replied at
// once and that poll all the time. For programs that sleep, the acknowledgement leaves first,
// since it wakes the peer before the reply arrives. For all others, acknowledgements leave
// before Poll returns.
type delayedAck struct {
	// from is the endpoint that sends both in one train, to a peer that restores their order.
	// Nil: acknowledgements are not delayed.
	from    *endpoint
	waiting bool
	poll    uint64        // shard.polls when the last message without a reply arrived; zero: there is none
	armed   uint64        // shard.armed when the last message arrived
	came    time.Duration // when the last message arrived
	replies int           // messages in a row that were replied to at once
	enough  int           // number of replies from which acknowledgements are delayed
}

const (
	// fewReplies and manyReplies bound delayedAck.enough. It doubles when a delayed
	// acknowledgement had to leave without a reply, and is halved when a reply took one along.
	fewReplies  = 4
	manyReplies = 64
	// promptReply is how soon a reply has to follow. It bounds the delay of acknowledgements
	// for a program that does much work between message and reply.
	promptReply = 50 * time.Microsecond
	// longestDelay is when a goroutine of the device checks a delayed acknowledgement whose
	// program, unlike before, neither replies nor polls. The goroutine sends it within
	// pollerGrace.
	longestDelay = pollerGrace
)

// newDelayedAck returns the initial state for the queue pair's path. Acknowledgements are not
// delayed for peers whose source port is not named, since these may be other implementations.
// Nor are they delayed under congestion control, which measures the round trip.
func (q *queuePair) newDelayedAck() delayedAck {
	a := delayedAck{enough: fewReplies}
	if u := networkPath(q.path); u != nil && q.source.Named() && !u.controlled() {
		a.from = u.endpoint
	}
	return a
}

// answerSoon schedules a queue pair's response to a packet, for this round or together with
// the program's reply. A program that does not reply polls again or arms a completion queue;
// either sends the acknowledgement.
func (s *shard) answerSoon(q *queuePair, now time.Duration) {
	a := &q.ack
	if a.from == nil || !s.inPoll || !q.transport.OnlyAcknowledges() {
		s.activate(q)
		return
	}
	poll := s.polls.Load()
	if a.poll != 0 && a.poll != poll || a.armed != s.armed {
		a.replies = 0
	}
	a.poll, a.armed, a.came = poll, s.armed, now
	switch {
	case a.waiting:
	case a.replies < a.enough || a.from.socket.Features().MaxSegments == 1:
		s.activate(q)
	default:
		s.ready.remove(q) // the entry's work has been done
		s.schedule(q)
		a.waiting = true
		s.unacknowledged.push(q)
		s.noteDeadline(now + longestDelay)
	}
}

// noteReply records that the program has posted requests.
func (q *queuePair) noteReply(now time.Duration) {
	a := &q.ack
	if a.poll == 0 {
		return
	}
	if a.poll == q.shard.polls.Load() && now-a.came < promptReply {
		a.replies = min(a.replies+1, manyReplies)
	} else {
		a.replies = 0
	}
	a.poll = 0
	if a.waiting {
		a.enough = max(a.enough/2, fewReplies)
		q.transport.RequestFirst()
	}
}

// sendDelayedAcks sends the acknowledgements for which no reply came.
func (s *shard) sendDelayedAcks() {
	for !s.unacknowledged.empty() {
		q := s.unacknowledged.first
		q.ack.replies, q.ack.enough = 0, min(2*q.ack.enough, manyReplies)
		s.activate(q)
	}
}

// sendDelayedAck sends a queue pair's delayed acknowledgement before a change of state
// discards it.
func (q *queuePair) sendDelayedAck() {
	if q.ack.waiting {
		s := q.shard
		now := s.device.now()
		s.sendFrom(q, now, allowance{packets: roundPackets, bytes: roundBytes}) // before all others
		s.transmit(now)
	}
}

// unlist removes a queue pair from the list that holds it, if any.
func (s *shard) unlist(q *queuePair) {
	if !q.ack.waiting {
		s.ready.remove(q)
		return
	}
	q.ack.waiting = false
	s.unacknowledged.remove(q)
}
