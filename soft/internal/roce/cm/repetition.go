package cm

import (
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/rtt"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	// initialTimeout is the time until the first repetition, where nothing is known of the peer.
	initialTimeout = 200 * time.Millisecond
	// minTimeout is the least: applications take part in what is measured, and are held up for
	// some milliseconds on a busy machine.
	minTimeout  = 50 * time.Millisecond
	granularity = time.Millisecond
	// maxMeasured is of how many peers the round trip is kept.
	maxMeasured = 1024
)

// roundTrip is what is known of the time in which a peer answers (RFC 6298).
type roundTrip struct {
	rtt.Estimate
	// backedOff is the time-out by which the last answer came that cannot be measured, since what
	// it answers was repeated. It holds until the next sample (RFC 6298, 5.7).
	backedOff time.Duration
}

// timeout is how long a peer has to answer, before a message to it is repeated.
func (m *Manager) timeout(peer verbs.GID) time.Duration {
	r := m.roundTrips[peer]
	if r == nil {
		return initialTimeout
	}
	return max(r.Timeout(initialTimeout, granularity), r.backedOff, minTimeout)
}

// repetition is when a message is sent again, and how often. The time between two begins with the
// peer's time-out, and doubles until all that are left share the time that is left evenly: in all
// it is what as many repetitions take that are most apart.
type repetition struct {
	sentAt   time.Duration // first
	wait     time.Duration // until the next, or the end
	most     time.Duration // the response timeout: mean of all waits
	left     time.Duration // of waiting, behind wait
	retries  uint8         // how often it may still be sent again
	repeated bool
}

// start begins to wait for a peer's answer, with n repetitions.
func (r *repetition) start(m *Manager, peer verbs.GID, n uint8, now time.Duration) {
	r.sentAt, r.retries, r.repeated = now, n, false
	r.left = time.Duration(n)*r.most + r.most
	r.waitFor(m.timeout(peer))
}

func (r *repetition) waitFor(t time.Duration) {
	share := r.left / time.Duration(r.retries+1)
	if r.wait = min(t, share); r.retries == 0 {
		r.wait = share
	}
	r.left -= r.wait
}

// next counts a repetition. It reports false if there is none to be.
func (r *repetition) next() bool {
	if r.retries == 0 {
		return false
	}
	r.retries--
	r.repeated = true
	r.waitFor(2 * r.wait)
	return true
}

// answered notes the time in which a peer has answered, if one can tell to which message.
func (r *repetition) answered(m *Manager, peer verbs.GID, now time.Duration) {
	t := m.roundTrips[peer]
	if t == nil {
		if len(m.roundTrips) >= maxMeasured {
			for other := range m.roundTrips {
				delete(m.roundTrips, other)
				break
			}
		}
		t = &roundTrip{}
		m.roundTrips[peer] = t
	}
	if r.repeated {
		t.backedOff = min(r.wait, r.most)
		return
	}
	t.Sample(now - r.sentAt)
	t.backedOff = 0
}
