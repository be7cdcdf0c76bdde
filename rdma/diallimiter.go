package rdma

import (
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/internal/fifo"
)

const (
	// maxOutstandingDials is how many requests to one address may be unanswered. Of thousands at
	// once, most would overrun the buffers of the peer's queue pair 1, or the backlog of its
	// listener, and be repeated a second later.
	maxOutstandingDials = 256
	// outstandingDialTime is how long a request counts against maxOutstandingDials, since the
	// peer's program may delay its answer without limit.
	outstandingDialTime = 100 * time.Millisecond
)

// dialLimiter limits the outstanding dials to one address.
type dialLimiter struct {
	target      netip.AddrPort
	outstanding int              // that count against maxOutstandingDials
	waiting     fifo.List[*dial] // in the order of arrival
	listed      bool             // in resumable of the connection manager
}

// limitedDial is a dial's part in a dialLimiter.
type limitedDial struct {
	limiter      *dialLimiter // nil: neither under way nor waiting
	place        fifo.Node[*dial]
	countedUntil time.Time // when the next dial may go out although this one has no answer
}

// acquireDial reports whether a dial may go out now. Otherwise resumeDials sends it when it may.
func (m *connectionManager) acquireDial(d *dial, target netip.AddrPort) bool {
	p := m.dialLimiters[target]
	if p == nil {
		p = &dialLimiter{target: target}
		m.dialLimiters[target] = p
	}
	d.limiter = p
	if p.outstanding < maxOutstandingDials && p.waiting.Len() == 0 {
		p.outstanding++
		d.countedUntil = m.core.host.Now().Add(outstandingDialTime)
		return true
	}
	d.place.Value = d
	p.waiting.Push(&d.place)
	return false
}

// releaseDial notes that a dial has been answered, has ended, or no longer delays others.
func (m *connectionManager) releaseDial(d *dial) {
	p := d.limiter
	if p == nil {
		return
	}
	d.limiter, d.countedUntil = nil, time.Time{}
	if !p.waiting.Remove(&d.place) {
		p.outstanding--
	}
	switch {
	case p.waiting.Len() > 0 && !p.listed:
		p.listed = true
		m.resumable.Push(p)
		m.core.wake()
	case p.waiting.Len() == 0 && p.outstanding == 0 && m.dialLimiters[p.target] == p:
		delete(m.dialLimiters, p.target)
	}
}

// resumeDials sends the requests that may go out now, and returns how many.
func (m *connectionManager) resumeDials() (n int) {
	for range m.resumable.Len() { // dials that fail at once are for the next pass
		p := m.resumable.Pop()
		p.listed = false
		for p.outstanding < maxOutstandingDials && p.waiting.Len() > 0 {
			d := p.waiting.Pop().Value
			p.outstanding++
			d.countedUntil = m.core.host.Now().Add(outstandingDialTime)
			d.schedule()
			d.send()
			n++
		}
	}
	return n
}
