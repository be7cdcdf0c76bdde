package transport

import "time"

// Waiting counts the queue pairs that wait for their peers to post a receive, without a
// limit on how often. All queue pairs that one lock guards share one.
type Waiting struct{ n int }

// A "receiver not ready" NAK names the least time to wait (IBTA 9.7.5.2.8). One queue
// pair that comes back after just that time costs little. Thousands that do so, every
// 640 µs by default, would leave the device no time for anything else: each waits
// longer, the more of them there are.
const (
	// repetitionShare is how much longer each of them has the others wait: all
	// together send 5,000 messages in a second.
	repetitionShare = 200 * time.Microsecond
	// maxRepetitionWait bounds how late it is noticed that a receive has been posted.
	maxRepetitionWait = time.Second
)

// notReady is a requester's part in Waiting.
type notReady struct {
	waits bool          // counted in Waiting
	since time.Duration // when the first NAK came
}

// crowdedWait is how long a queue pair waits for a receive that it has waited for
// since then: no longer than it has waited already, however many others there are.
func (q *QP) crowdedWait(now time.Duration) time.Duration {
	if !q.notReady.waits {
		q.notReady = notReady{waits: true, since: now}
		q.waiting.n++
	}
	return min(now-q.notReady.since, time.Duration(q.waiting.n-1)*repetitionShare, maxRepetitionWait)
}

// endNotReady notes that the queue pair waits for no receive any more.
func (q *QP) endNotReady() {
	if q.notReady.waits {
		q.notReady.waits = false
		q.waiting.n--
	}
}
