package roce

import (
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
)

// delayedAck sends the acknowledgement of a message together with the program's reply: by UDP in
// one system call and one train of packets, which pass the network stack once. The peer is then
// woken once for both. Acknowledgements are delayed for programs that recently replied soon:
//   - If a program that polls all the time replied before its next poll, the acknowledgement waits
//     for that poll.
//   - If the reply came later, from another goroutine or from a program that had slept, the
//     acknowledgement waits for the reply, and for maxAckDelay at most.
//
// Through shared memory the acknowledgement leaves before the last packet of the reply: a program that
// polls only for its completion, and then reads memory until the reply is there, receives it while it
// polls.
//
// For all others, acknowledgements leave at once.
type delayedAck struct {
	// endpoint is the endpoint that sends both in one train, to a peer that restores their order.
	// Nil: there are no such trains.
	endpoint *endpoint
	// shared: packets go through shared memory, in order.
	shared    bool
	waiting   bool
	until     time.Duration // when it leaves; zero: when the program polls again
	pending   bool          // the last message has no reply yet
	arrived   moment        // when the last message arrived
	arrivedAt time.Duration // when the last message arrived
	replies   int           // messages in a row that were replied to before the next poll
	soon      int           // messages in a row that were replied to within maxSoon
	threshold int           // number of replies from which acknowledgements are delayed
}

const (
	// minThreshold and maxThreshold bound threshold. It doubles when a delayed
	// acknowledgement had to leave without a reply, and is halved when a reply took one along.
	minThreshold = 4
	maxThreshold = 64
	// maxReplyTime is how soon a reply has to follow before the next poll. It bounds the delay of
	// acknowledgements for a program that does much work between message and reply.
	maxReplyTime = 50 * time.Microsecond
	// maxSoon is how soon a reply has to follow otherwise. Waking the program and its goroutines
	// takes part of that time.
	maxSoon = 500 * time.Microsecond
	// maxAckDelay is when a goroutine of the device checks a delayed acknowledgement whose
	// program, unlike before, neither replies nor polls. The goroutine sends it within
	// pollerGrace.
	maxAckDelay = pollerGrace
	// maxAckHold is how long an acknowledgement then waits for the last packet of a long reply
	// through shared memory. In that time, some 30 MiB leave.
	maxAckHold = 4 * time.Millisecond
)

// mayDelayAck reports whether acknowledgements may be delayed: by UDP only for a device like this
// one, since others need not expect the reply before the acknowledgement.
func (q *queuePair) mayDelayAck() bool {
	a := &q.ack
	return a.shared || a.endpoint != nil && q.source.LikeOurs() && a.endpoint.socket.Features().MaxSegments > 1
}

// scheduleResponse schedules a queue pair's response to a packet, for this round or together with
// the program's reply.
func (s *shard) scheduleResponse(q *queuePair, now time.Duration) {
	a := &q.ack
	if !q.transport.OnlyAcknowledges() || !q.mayDelayAck() {
		s.activate(q)
		return
	}
	t := &s.mu.attendance
	if a.pending && t.polledSince(a.arrived) || t.sleptSince(a.arrived) || !t.polling || a.shared {
		a.replies = 0
	}
	if a.pending && (t.polledSince(a.arrived) || !t.polling) {
		a.soon = 0
	}
	a.pending, a.arrived, a.arrivedAt = true, t.Now(), now
	switch {
	case a.waiting && a.until == 0: // for the same poll
	case a.waiting: // the peer sends more without a reply
		s.activate(q)
	case a.replies >= a.threshold:
		s.delayAck(q, 0, now)
	case a.soon >= a.threshold && !q.transport.Requests():
		s.delayAck(q, now+maxAckDelay, now)
	default:
		s.activate(q)
	}
}

// delayAck makes the acknowledgement wait.
func (s *shard) delayAck(q *queuePair, until, now time.Duration) {
	s.mu.ready.Remove(&q.ready) // the entry's work has been done
	s.schedule(q)
	q.ack.waiting, q.ack.until = true, until
	s.mu.unacknowledged.Push(&q.ready)
	s.noteDeadline(now + maxAckDelay)
}

// noteReply records that the program has posted requests.
func (q *queuePair) noteReply(now time.Duration) {
	a := &q.ack
	if !a.pending {
		return
	}
	a.pending = false
	took := now - a.arrivedAt
	a.replies = countReply(a.replies, took < maxReplyTime && !q.shard.mu.attendance.polledSince(a.arrived))
	a.soon = countReply(a.soon, took < maxSoon)
	if a.waiting {
		a.threshold = max(a.threshold/2, minThreshold)
		switch {
		case a.shared:
			q.transport.HoldAck(transport.AllButLast, now+maxAckHold)
		case q.source.Named() || a.endpoint.socket.Addr().Addr().IsLoopback():
			// A learned port may be that of another implementation, but not on a loopback interface.
			q.transport.HoldAck(1, 0)
		}
	}
}

func countReply(n int, prompt bool) int {
	if !prompt {
		return 0
	}
	return min(n+1, maxThreshold)
}

// sendDelayedAcks sends the acknowledgements for which no reply came in time.
func (s *shard) sendDelayedAcks(now time.Duration) {
	for n := s.mu.unacknowledged.Front(); n != nil; {
		q := n.Value
		n = n.Next()
		if a := &q.ack; now >= a.until {
			a.replies, a.soon, a.threshold = 0, 0, min(2*a.threshold, maxThreshold)
			s.activate(q)
		}
	}
}

// sendDelayedAck sends a queue pair's delayed acknowledgement before a change of state
// discards it.
func (q *queuePair) sendDelayedAck() {
	if q.ack.waiting || q.transport.ReleaseAck() {
		s := q.shard
		now := s.device.now()
		s.sendFrom(q, now, allowance{packets: roundPackets, bytes: roundBytes}) // before all others
		s.transmit(now)
	}
}

// dequeue removes a queue pair from the list that holds it, if any.
func (s *shard) dequeue(q *queuePair) {
	q.ack.waiting = false
	_ = s.mu.ready.Remove(&q.ready) || s.mu.unacknowledged.Remove(&q.ready)
}
