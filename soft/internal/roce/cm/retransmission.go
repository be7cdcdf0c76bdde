package cm

import (
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/rtt"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	// initialTimeout is the time until the first repetition to a peer that was not measured
	// yet.
	initialTimeout = 200 * time.Millisecond
	// minTimeout is the least time-out: the measurement includes applications, which a busy
	// machine delays by some milliseconds.
	minTimeout  = 50 * time.Millisecond
	granularity = time.Millisecond
	// maxMeasured bounds the peers whose round trip is kept.
	maxMeasured = 1024
)

// roundTrip estimates the response time of a peer (RFC 6298).
type roundTrip struct {
	rtt.Estimate
	// backedOff is the time-out of the last message whose response could not be measured,
	// since the message was repeated. It holds until the next sample (RFC 6298, 5.7).
	backedOff time.Duration
}

// timeout returns how long to wait for a peer's response before a message is repeated.
func (m *Manager) timeout(peer verbs.GID) time.Duration {
	r := m.roundTrips[peer]
	if r == nil {
		return initialTimeout
	}
	return max(r.Timeout(initialTimeout, granularity), r.backedOff, minTimeout)
}

// retransmission schedules the repetitions of a message. The interval starts with the peer's
// time-out, and doubles until an even share of the remaining time is shorter. The total time
// is that of all repetitions at intervals of most.
type retransmission struct {
	sentAt          time.Duration // the first time
	wait            time.Duration // until the next repetition, or the end
	responseTimeout time.Duration // the response timeout: the mean interval
	left            time.Duration // total of the intervals after wait
	retries         uint8         // remaining repetitions
	repeated        bool
}

// start starts the wait for a peer's response, with n repetitions.
func (r *retransmission) start(m *Manager, peer verbs.GID, n uint8, now time.Duration) {
	r.sentAt, r.retries, r.repeated = now, n, false
	r.left = time.Duration(n)*r.responseTimeout + r.responseTimeout
	r.waitFor(m.timeout(peer))
}

func (r *retransmission) waitFor(t time.Duration) {
	share := r.left / time.Duration(r.retries+1)
	if r.wait = min(t, share); r.retries == 0 {
		r.wait = share
	}
	r.left -= r.wait
}

// next counts a repetition. It reports false if none is left.
func (r *retransmission) next() bool {
	if r.retries == 0 {
		return false
	}
	r.retries--
	r.repeated = true
	r.waitFor(2 * r.wait)
	return true
}

// noteResponse records the peer's response time, if it is clear which message the peer responded
// to.
func (r *retransmission) noteResponse(m *Manager, peer verbs.GID, now time.Duration) {
	t := m.roundTrips[peer]
	if t == nil {
		if len(m.roundTrips) >= maxMeasured {
			delete(m.roundTrips, m.measured.Pop())
		}
		m.measured.Push(peer)
		t = &roundTrip{}
		m.roundTrips[peer] = t
	}
	if r.repeated {
		t.backedOff = min(r.wait, r.responseTimeout)
		return
	}
	t.Sample(now - r.sentAt)
	t.backedOff = 0
}
