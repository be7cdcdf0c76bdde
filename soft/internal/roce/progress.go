package roce

import (
	"runtime/debug"
	"time"
)

// look says at which endpoints a round of progress looks for packets.
type look uint8

const (
	atPolled look = iota // at those that programs poll
	atReady              // at those that a wait has ended for
	atAll                // at both
)

// progress receives packets, handles timers and sends. It returns where there was work.
func (s *shard) progress(now time.Duration, at look) (found work) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // see dma.Fault
	s.sendDelayedAcks(now)
	for _, e := range s.endpoints {
		if (at != atReady && e.polledFor(now) || at != atPolled && e.socket.Ready()) && e.receive(now) {
			found |= fromSockets
		}
	}
	if s.handoffs.waiting.Load() && s.handleHandoffs(now) {
		found |= otherWork
		s.failOverrun()
	}
	if s.mu.local.Active() && s.mu.local.Receive(now) {
		found |= fromMemory
	}
	if s.mu.unreachable.n > 0 { // before a timer repeats what was refused
		s.probeUnreachable(now)
	}
	if s.mu.deadline != 0 && now >= s.mu.deadline {
		s.expire(now)
	}
	if s.readyToSend() {
		s.transmit(now)
		found |= otherWork
	}
	return found
}

// readyToSend reports whether there is something to send at once.
func (s *shard) readyToSend() bool {
	d := s.device
	return s.mu.ready.Len() > 0 || s == d.main.shard && (d.main.srd.Ready() || d.main.srdReplied)
}

// activate lists the queue pair for sending, if it has a path.
func (s *shard) activate(q *queuePair) {
	if q.ack.waiting {
		s.dequeue(q)
	}
	if q.path != nil && !q.ready.Queued() {
		s.mu.ready.Push(&q.ready)
	}
}

// transmit lets the ready queue pairs send, one after the other, within the allowance of a
// round.
func (s *shard) transmit(now time.Duration) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // see dma.Fault
	a := allowance{packets: roundPackets, bytes: roundBytes}
	for s.mu.ready.Len() > 0 && a.remains() {
		a = s.sendFrom(s.mu.ready.Front().Value, now, a)
	}
	if s == s.device.main.shard {
		s.device.sendSRD(now)
	}
	for _, e := range s.endpoints {
		_ = e.flush()
	}
	s.mu.local.Flush()
	s.failOverrun()
	if s.readyToSend() {
		s.wake()
	}
}

// sendFrom lets a queue pair send its share of the allowance, and returns the rest.
func (s *shard) sendFrom(q *queuePair, now time.Duration, a allowance) allowance {
	s.dequeue(q)
	a, more := q.path.send(q.transport, now, a)
	if !more {
		s.schedule(q)
	} else if !q.ready.Queued() { // the path may have activated it
		s.mu.ready.Push(&q.ready)
	}
	return a
}

// wake wakes a goroutine of the device to send what is ready, without waiting for a packet.
func (s *shard) wake() { s.sockets.Interrupt() }

// sendSRD sends what is ready for SRD peers. The lock of main is held.
func (d *Device) sendSRD(now time.Duration) {
	d.main.srdReplied = false
	if d.main.srd.Ready() {
		d.main.srd.Transmit(now, srdRoundPackets)
	}
	if at := d.main.srd.Deadline(); at != 0 {
		d.main.noteDeadline(at)
	}
}
