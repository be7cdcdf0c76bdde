package dialling

import (
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/host"
)

const (
	// MaxOutstanding is how many requests to one address may be unanswered. Of thousands at
	// once, most would overrun the buffers of the peer's queue pair 1, or the backlog of its
	// listener, and be repeated a second later.
	MaxOutstanding = 256
	// outstandingTime is how long a request counts against MaxOutstanding, since the peer's program
	// may delay its answer without limit.
	outstandingTime = 100 * time.Millisecond
)

// Limiter limits the outstanding dials to each address.
type Limiter struct {
	Host host.Host
	Wake func() // makes the engine call Resume

	targets   map[netip.AddrPort]*target
	resumable fifo.Queue[*target]
}

// target is an address that is dialled.
type target struct {
	addr        netip.AddrPort
	outstanding int              // dials that count against MaxOutstanding
	waiting     fifo.List[*Dial] // in the order of arrival
	listed      bool             // in resumable
}

// Dial is a dial in a Limiter.
type Dial struct {
	target       *target // nil: neither under way nor waiting
	place        fifo.Node[*Dial]
	send         func()
	countedUntil time.Time // when the next dial may go out although this one has no answer
}

// Acquire reports whether a dial may go out now. Otherwise Resume calls send when it may.
func (l *Limiter) Acquire(d *Dial, addr netip.AddrPort, send func()) bool {
	p := l.targets[addr]
	if p == nil {
		p = &target{addr: addr}
		if l.targets == nil {
			l.targets = make(map[netip.AddrPort]*target)
		}
		l.targets[addr] = p
	}
	d.target = p
	if p.outstanding < MaxOutstanding && p.waiting.Len() == 0 {
		l.count(d)
		return true
	}
	d.place.Value, d.send = d, send
	p.waiting.Push(&d.place)
	return false
}

// count makes a dial count against MaxOutstanding.
func (l *Limiter) count(d *Dial) {
	d.target.outstanding++
	d.countedUntil = l.Host.Now().Add(outstandingTime)
}

// Release notes that a dial has been answered, has ended, or no longer delays others.
func (l *Limiter) Release(d *Dial) {
	p := d.target
	if p == nil {
		return
	}
	d.target, d.countedUntil = nil, time.Time{}
	if !p.waiting.Remove(&d.place) {
		p.outstanding--
	}
	switch {
	case p.waiting.Len() > 0 && !p.listed:
		p.listed = true
		l.resumable.Push(p)
		l.Wake()
	case p.waiting.Len() == 0 && p.outstanding == 0 && l.targets[p.addr] == p:
		delete(l.targets, p.addr)
	}
}

// Due releases a dial whose answer has taken too long to delay others further.
func (l *Limiter) Due(d *Dial, now time.Time) {
	if !d.countedUntil.IsZero() && !now.Before(d.countedUntil) {
		l.Release(d)
	}
}

// Earliest is when Due is to be called, or at if that is earlier. Zero is never.
func (d *Dial) Earliest(at time.Time) time.Time {
	if !d.countedUntil.IsZero() && (at.IsZero() || d.countedUntil.Before(at)) {
		return d.countedUntil
	}
	return at
}

// Count returns how many dials to an address count against MaxOutstanding, and how many wait.
func (l *Limiter) Count(addr netip.AddrPort) (outstanding, waiting int) {
	if p := l.targets[addr]; p != nil {
		return p.outstanding, p.waiting.Len()
	}
	return 0, 0
}

// Busy reports whether Resume has something to do.
func (l *Limiter) Busy() bool { return l.resumable.Len() > 0 }

// Resume sends the dials that may go out now, and returns how many.
func (l *Limiter) Resume() (n int) {
	for range l.resumable.Len() { // dials that fail at once are for the next pass
		p := l.resumable.Pop()
		p.listed = false
		for p.outstanding < MaxOutstanding && p.waiting.Len() > 0 {
			d := p.waiting.Pop().Value
			l.count(d)
			d.send()
			n++
		}
	}
	return n
}

// Clear forgets all dials.
func (l *Limiter) Clear() {
	l.targets = nil
	l.resumable.Clear()
}
