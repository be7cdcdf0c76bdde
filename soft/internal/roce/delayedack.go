package roce

import "time"

// delayedAck sends the acknowledgement of a message together with the program's reply, in one
// system call and one train of packets. Both then pass the network stack once, and the reply
// does not wait behind the acknowledgement. It is used for programs that recently replied at
// once and that poll all the time. For programs that sleep, the acknowledgement leaves first,
// since it wakes the peer before the reply arrives. For all others, acknowledgements leave
// before Poll returns.
type delayedAck struct {
	// endpoint is the endpoint that sends both in one train, to a peer that restores their order.
	// Nil: acknowledgements are not delayed.
	endpoint  *endpoint
	waiting   bool
	poll      uint64        // shard.polls when the last message without a reply arrived; zero: there is none
	armCount  uint64        // shard.armed when the last message arrived
	arrivedAt time.Duration // when the last message arrived
	replies   int           // messages in a row that were replied to at once
	threshold int           // number of replies from which acknowledgements are delayed
}

const (
	// minThreshold and maxThreshold bound threshold. It doubles when a delayed
	// acknowledgement had to leave without a reply, and is halved when a reply took one along.
	minThreshold = 4
	maxThreshold = 64
	// maxReplyTime is how soon a reply has to follow. It bounds the delay of acknowledgements
	// for a program that does much work between message and reply.
	maxReplyTime = 50 * time.Microsecond
	// maxAckDelay is when a goroutine of the device checks a delayed acknowledgement whose
	// program, unlike before, neither replies nor polls. The goroutine sends it within
	// pollerGrace.
	maxAckDelay = pollerGrace
)

// newDelayedAck returns the initial state for the queue pair's path. Acknowledgements are not
// delayed for peers whose source port is not named, since these may be other implementations.
// Nor are they delayed under congestion control, which measures the round trip.
func (q *queuePair) newDelayedAck() delayedAck {
	a := delayedAck{threshold: minThreshold}
	if u := networkPath(q.path); u != nil && q.source.Named() && !u.controlled() {
		a.endpoint = u.endpoint
	}
	return a
}

// scheduleResponse schedules a queue pair's response to a packet, for this round or together with
// the program's reply. A program that does not reply polls again or arms a completion queue;
// either sends the acknowledgement.
func (s *shard) scheduleResponse(q *queuePair, now time.Duration) {
	a := &q.ack
	if a.endpoint == nil || !s.inPoll || !q.transport.OnlyAcknowledges() {
		s.activate(q)
		return
	}
	poll := s.polls.Load()
	if a.poll != 0 && a.poll != poll || a.armCount != s.armCount {
		a.replies = 0
	}
	a.poll, a.armCount, a.arrivedAt = poll, s.armCount, now
	switch {
	case a.waiting:
	case a.replies < a.threshold || a.endpoint.socket.Features().MaxSegments == 1:
		s.activate(q)
	default:
		s.ready.remove(q) // the entry's work has been done
		s.schedule(q)
		a.waiting = true
		s.unacknowledged.push(q)
		s.noteDeadline(now + maxAckDelay)
	}
}

// noteReply records that the program has posted requests.
func (q *queuePair) noteReply(now time.Duration) {
	a := &q.ack
	if a.poll == 0 {
		return
	}
	if a.poll == q.shard.polls.Load() && now-a.arrivedAt < maxReplyTime {
		a.replies = min(a.replies+1, maxThreshold)
	} else {
		a.replies = 0
	}
	a.poll = 0
	if a.waiting {
		a.threshold = max(a.threshold/2, minThreshold)
		q.transport.RequestFirst()
	}
}

// sendDelayedAcks sends the acknowledgements for which no reply came.
func (s *shard) sendDelayedAcks() {
	for !s.unacknowledged.empty() {
		q := s.unacknowledged.first
		q.ack.replies, q.ack.threshold = 0, min(2*q.ack.threshold, maxThreshold)
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

// dequeue removes a queue pair from the list that holds it, if any.
func (s *shard) dequeue(q *queuePair) {
	if !q.ack.waiting {
		s.ready.remove(q)
		return
	}
	q.ack.waiting = false
	s.unacknowledged.remove(q)
}
