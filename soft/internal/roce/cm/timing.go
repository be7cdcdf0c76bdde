package cm

import "time"

// duration is the time of a code: 4.096 µs × 2^code (IBTA 12.7).
func duration(code uint8) time.Duration { return 4096 * time.Nanosecond << min(code, 31) }

// codeOf is the smallest code whose time is not less than d.
func codeOf(d time.Duration) uint8 {
	code := uint8(0)
	for code < 31 && duration(code) < d {
		code++
	}
	return code
}

// ackTimeout is the local ACK timeout of a queue pair from the code of a path's round
// trip and the peer's target ACK delay: the smallest code that covers their sum.
func ackTimeout(roundTrip, delay uint8) uint8 {
	return codeOf(duration(roundTrip) + duration(delay))
}

// Bounds of what a peer may demand, as codes.
const (
	minResponseTimeout = 14 // 67 ms: nobody has us repeat a message more often
	maxResponseTimeout = 22 // 17 s
	minAckTimeout      = 14
	maxAckTimeout      = 21 // 8.6 s
)

func clamp(x, least, most uint8) uint8 { return max(least, min(x, most)) }
