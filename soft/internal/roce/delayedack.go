package roce

import "time"

// delayedAck lets the acknowledgement of a message leave together with the program's reply, in one
// system call and one train of packets. So both pass the layers of the network once, and the reply
// does not wait behind the acknowledgement. It is for programs whose recent replies came at once,
// and that poll all the time: where programs sleep, the acknowledgement wakes the peer before the
// reply comes. For all others, acknowledgements leave before Poll returns.
type delayedAck struct {
	// from is the endpoint that can send both in one train, to a device that puts them in order;
	// nil: there is none.
	from    *endpoint
	waiting bool
	poll    uint64        // shard.polls when the last message came that has not been replied to; zero: none
	armed   uint64        // shard.armed when the last message came
	came    time.Duration // when it came
	replies int           // messages in a row that were replied to at once
	enough  int           // of these, before acknowledgements wait
}

const (
	// fewReplies and manyReplies bound delayedAck.enough: it doubles with each acknowledgement
	// that has waited in vain, and is halved by each that has not.
	fewReplies  = 4
	manyReplies = 64
	// promptReply is how soon a reply has to follow, which bounds how long the acknowledgements
	// of a program wait that does much between message and reply.
	promptReply = 50 * time.Microsecond
	// longestDelay is when a goroutine of the device looks at an acknowledgement whose program
	// neither replies nor polls, contrary to its habit. It sends it within pollerGrace.
	longestDelay = pollerGrace
)

// newDelayedAck is for the path that the queue pair has. Peers whose port nobody has named may be
// other implementations, so they get acknowledgement and reply in the usual order. So do all peers
// where congestion is controlled, since the round trip is a signal for that.
func (q *queuePair) newDelayedAck() delayedAck {
	a := delayedAck{enough: fewReplies}
	if u := networkPath(q.path); u != nil && q.source.Named() && !u.controlled() {
		a.from = u.endpoint
	}
	return a
}

// answerSoon makes a queue pair send its answer to a packet: in this round, or together with the
// program's reply. A program that does not reply makes progress by its next poll, or arms a
// completion queue, either of which sends the acknowledgement.
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
		s.ready.remove(q) // what it was listed for has been done
		s.schedule(q)
		a.waiting = true
		s.unacknowledged.push(q)
		s.noteDeadline(now + longestDelay)
	}
}

// noteReply notes that the program has posted requests.
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

// sendDelayedAcks sends the acknowledgements that have waited for a reply in vain.
func (s *shard) sendDelayedAcks() {
	for !s.unacknowledged.empty() {
		q := s.unacknowledged.first
		q.ack.replies, q.ack.enough = 0, min(2*q.ack.enough, manyReplies)
		s.activate(q)
	}
}

// sendDelayedAck sends the acknowledgement of a queue pair that is about to lose it.
func (q *queuePair) sendDelayedAck() {
	if q.ack.waiting {
		s := q.shard
		now := s.device.now()
		s.sendFrom(q, now, allowance{packets: roundPackets, bytes: roundBytes}) // before all others
		s.transmit(now)
	}
}

// unlist takes a queue pair off the list that it is in, if any.
func (s *shard) unlist(q *queuePair) {
	if !q.ack.waiting {
		s.ready.remove(q)
		return
	}
	q.ack.waiting = false
	s.unacknowledged.remove(q)
}
