package transport

import "time"

// pacer bounds the rate of services that nothing acknowledges. The peer of an
// adapter receives as fast as the wire brings packets; that of a software device
// has a socket buffer, which a long message would overrun.
type pacer struct {
	credit    int           // bytes that may leave now
	refilled  time.Duration // when credit was last added to
	paceUntil time.Duration // zero: not waiting
}

const (
	paceRate = 512 << 20 // bytes a second
	// packetCost is what a socket buffer is charged for a packet besides its
	// payload, at least.
	packetCost = 256
)

// refill adds the credit earned since the last time.
func (q *QP) refill(now time.Duration) {
	elapsed := min(now-q.refilled, time.Second)
	q.refilled = now
	q.credit = min(q.credit+int(elapsed*paceRate/time.Second), q.window)
}

// pause waits until a quarter of the window may leave.
func (q *QP) pause(now time.Duration) {
	q.paceUntil = now + time.Duration(q.window/4-q.credit)*time.Second/paceRate
}
