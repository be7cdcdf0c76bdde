package roce

import (
	"runtime/debug"
	"time"
)

// progress receives packets, handles timers and sends. It reports whether there was any work.
// Endpoints from which no queue pair receives are checked only by their own goroutine, which
// passes itself as self.
func (s *shard) progress(now time.Duration, self *endpoint) bool {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // see dma.Fault
	worked := false
	s.sendDelayedAcks(now)
	for _, e := range s.endpoints {
		if (e == self || e.polledFor(now)) && e.receive(now) {
			worked = true
		}
	}
	if s.handoffs.waiting.Load() && s.handleHandoffs(now) {
		worked = true
		s.failOverrun()
	}
	if s.mu.local.Active() && s.mu.local.Receive(now) {
		worked = true
	}
	if s.mu.unreachable.n > 0 { // before a timer repeats what was refused
		s.probeUnreachable(now)
	}
	if s.mu.deadline != 0 && now >= s.mu.deadline {
		s.expire(now)
	}
	if s.readyToSend() {
		s.transmit(now)
		worked = true
	}
	return worked
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
func (s *shard) wake() {
	for _, e := range s.endpoints {
		if e.wakes() {
			e.socket.Interrupt()
			return
		}
	}
}

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
