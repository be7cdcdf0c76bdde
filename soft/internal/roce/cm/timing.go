package cm

import "time"

// timeoutDuration returns the time of a code: 4.096 µs × 2^code (IBTA 12.7).
func timeoutDuration(code uint8) time.Duration { return 4096 * time.Nanosecond << min(code, 31) }

// timeoutCode returns the smallest code whose time is not less than d.
func timeoutCode(d time.Duration) uint8 {
	code := uint8(0)
	for code < 31 && timeoutDuration(code) < d {
		code++
	}
	return code
}

// ackTimeout returns a queue pair's local ACK timeout: the smallest code that covers the sum
// of the path's round trip and the peer's target ACK delay.
func ackTimeout(roundTrip, delay uint8) uint8 {
	return timeoutCode(timeoutDuration(roundTrip) + timeoutDuration(delay))
}

// Bounds of the times that a peer may request, as codes.
const (
	minResponseTimeout = 14 // 67 ms: no peer can make us repeat a message more often
	maxResponseTimeout = 22 // 17 s
	minAckTimeout      = 14
	maxAckTimeout      = 21 // 8.6 s
)

func clamp(x, least, most uint8) uint8 { return max(least, min(x, most)) }
