package transport

import "time"

// RNRWaiters counts the queue pairs that wait for their peers to post a receive and have no
// limit on retries. All queue pairs under one lock share one.
type RNRWaiters struct{ n int }

// A "receiver not ready" NAK names the least time to wait (IBTA 9.7.5.2.8). One queue pair
// that retries after just that time costs little. Thousands that do so, every 640 µs by
// default, would leave the device no time for anything else. So each waits longer, the more of
// them there are.
const (
	// rnrWaitShare is how much longer each queue pair waits for every other one. Together
	// they send 5,000 messages a second.
	rnrWaitShare = 200 * time.Microsecond
	// maxRNRWait bounds how late the requester notices that a receive was posted.
	maxRNRWait = time.Second
)

// rnrWait is a requester's share in RNRWaiters.
type rnrWait struct {
	counted bool          // counted in RNRWaiters
	since   time.Duration // when the first NAK came
}

// sharedRNRWait returns how long a queue pair waits for a receive before it tries again. It is
// no longer than the queue pair has waited already, however many others there are.
func (q *QP) sharedRNRWait(now time.Duration) time.Duration {
	if !q.rnrWait.counted {
		q.rnrWait = rnrWait{counted: true, since: now}
		q.rnrWaiters.n++
	}
	return min(now-q.rnrWait.since, time.Duration(q.rnrWaiters.n-1)*rnrWaitShare, maxRNRWait)
}

// endRNRWait notes that the queue pair no longer waits for a receive.
func (q *QP) endRNRWait() {
	if q.rnrWait.counted {
		q.rnrWait.counted = false
		q.rnrWaiters.n--
	}
}
