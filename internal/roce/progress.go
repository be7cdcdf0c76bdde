package roce

import "time"

// progress receives, does what is due and sends. It reports whether it did
// anything. Endpoints that no queue pair takes packets from are looked at only by
// their own goroutine, which passes itself. The lock is held.
func (d *Device) progress(now time.Duration, self *endpoint) bool {
	worked := false
	for _, e := range d.endpoints {
		if (e == self || e.polledFor(now)) && e.receive(now) {
			worked = true
		}
	}
	if len(d.local.polled.peers) > 0 && d.local.receive(now) {
		worked = true
	}
	if d.deadline != 0 && now >= d.deadline {
		d.expire(now)
	}
	if d.unreachable.n > 0 {
		d.probeUnreachable(now)
	}
	if d.sendsMore() {
		d.transmit(now)
		worked = true
	}
	return worked
}

// sendsMore reports whether there is something to send at once.
func (d *Device) sendsMore() bool { return !d.ready.empty() || d.srd.Ready() || d.srdReplied }

// activate has the queue pair send soon, if it has a path.
func (d *Device) activate(q *queuePair) {
	if q.path != nil {
		d.ready.push(q)
	}
}

// transmit has the queue pairs that are ready send, one after the other, as far as
// the allowance of a round goes.
func (d *Device) transmit(now time.Duration) {
	a := allowance{packets: roundPackets, copied: roundBytes}
	for !d.ready.empty() && a.any() {
		q := d.ready.first
		d.ready.remove(q)
		more := false
		if a, more = q.path.transmit(q.transport, now, a); more {
			d.ready.push(q)
		} else {
			d.schedule(q)
		}
	}
	d.srdReplied = false
	if d.srd.Ready() {
		d.srd.Transmit(now, roundPackets)
	}
	if at := d.srd.Deadline(); at != 0 {
		d.noteDeadline(at)
	}
	for _, e := range d.endpoints {
		_ = e.flush()
	}
	d.local.flush()
	d.failOverrun()
	if d.sendsMore() {
		d.wake()
	}
}

// wake has a goroutine of the device go on with what is ready, though no packet
// comes.
func (d *Device) wake() {
	for _, e := range d.endpoints {
		if e.wakes() {
			e.socket.Interrupt()
			return
		}
	}
}
