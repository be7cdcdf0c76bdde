package cm

import (
	"bytes"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
)

// Some programs close their listener and listen again, as perftest does between its two connections.
// Their peers may be sooner with the next request. The kernel's connection manager ends the dial
// when such a request is rejected, so it waits for a while.
const (
	// endedLately is how long after the end of a listener requests wait, and earlyWait for how long.
	endedLately = 5 * time.Second
	earlyWait   = 500 * time.Millisecond
	// earlyInterval is how often a request that waits looks for a listener.
	earlyInterval = 5 * time.Millisecond
	// rejectedLately is how long repetitions of a rejected request may be under way.
	rejectedLately = 5 * time.Second
	// maxEarly, maxEnded and maxRejected bound what the manager keeps.
	maxEarly    = 64
	maxEnded    = 64
	maxRejected = 64
)

// rejectedRequest is a request for which there was no listener. Its repetitions get the same answer,
// also if there is a listener by now: the peer's program has been told, and may be gone.
type rejectedRequest struct {
	key         requestKey
	transaction uint64
	at          time.Duration
}

// noteRejected notes that a request found no listener.
func (m *Manager) noteRejected(r rejectedRequest) {
	if len(m.rejected) == maxRejected {
		m.rejected = slices.Delete(m.rejected, 0, 1)
	}
	m.rejected = append(m.rejected, r)
}

// wasRejected reports whether a request repeats one that has found no listener.
func (m *Manager) wasRejected(key requestKey, transaction uint64, now time.Duration) bool {
	return slices.ContainsFunc(m.rejected, func(r rejectedRequest) bool {
		return r.key == key && r.transaction == transaction && now-r.at < rejectedLately
	})
}

// endedListener is a listener that was closed.
type endedListener struct {
	key listenerKey
	at  time.Duration
}

// earlyRequest is a request that waits for a listener.
type earlyRequest struct {
	manager *Manager
	request [mad.Len]byte
	from    Path
	service uint64
	until   time.Duration
	timer   timer
}

// noteEnded notes that a listener was closed.
func (m *Manager) noteEnded(key listenerKey, now time.Duration) {
	if len(m.ended) == maxEnded {
		m.ended = slices.Delete(m.ended, 0, 1)
	}
	m.ended = append(m.ended, endedListener{key, now})
}

// keepEarly keeps a request for a service whose listener has just been closed, and reports whether it
// does.
func (m *Manager) keepEarly(service uint64, request []byte, from Path, now time.Duration) bool {
	local := from.localGID()
	if len(m.ended) == 0 || m.listenerFor(service, local) != nil {
		return false
	}
	lately := func(l endedListener) bool {
		return now-l.at < endedLately && (l.key == listenerKey{service, local} || l.key == listenerKey{service: service})
	}
	if !slices.ContainsFunc(m.ended, lately) {
		return false
	}
	ofPeer := 0
	for _, e := range m.early {
		if e.from.Remote.Addr() == from.Remote.Addr() {
			ofPeer++
		}
		switch {
		case !bytes.Equal(e.request[:], request) || e.from.Remote != from.Remote:
		case now >= e.until:
			return false // it has waited
		default:
			m.counters.DuplicateREQ++
			return true
		}
	}
	if ofPeer >= maxEarly-len(m.early) { // the rest is for other peers
		return false
	}
	e := &earlyRequest{manager: m, from: from, service: service, until: now + earlyWait}
	copy(e.request[:], request)
	e.timer.Owner = e
	m.early = append(m.early, e)
	m.timers.Set(&e.timer, now+earlyInterval)
	return true
}

func (e *earlyRequest) expire(now time.Duration) {
	m := e.manager
	if now < e.until && m.listenerFor(e.service, e.from.localGID()) == nil {
		m.timers.Set(&e.timer, min(now+earlyInterval, e.until))
		return
	}
	m.handle(e.request[:], e.from, now)
	m.early = slices.DeleteFunc(m.early, func(other *earlyRequest) bool { return other == e })
}

// dropEarly drops the requests that wait.
func (m *Manager) dropEarly() {
	for _, e := range m.early {
		m.timers.Remove(&e.timer)
	}
	m.early = nil
}
