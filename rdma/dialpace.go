package rdma

import (
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/internal/fifo"
)

const (
	// dialsAtOnce is how many requests to one address may be unanswered. Most of thousands at
	// once would overrun the buffers of the peer's queue pair 1, or the backlog of its
	// listener, and be repeated a second later.
	dialsAtOnce = 256
	// dialTurn is how long a request counts as unanswered before the next may go out: the
	// peer's program may delay its answer without limit.
	dialTurn = 100 * time.Millisecond
)

// dialPace paces the dials to one address.
type dialPace struct {
	target   netip.AddrPort
	underWay int              // that count against dialsAtOnce
	waiting  fifo.List[*dial] // in the order of arrival
	listed   bool             // in resumable of the connection manager
}

// pacedDial is a dial's part in a dialPace.
type pacedDial struct {
	pace  *dialPace // nil: neither under way nor waiting
	place fifo.Node[*dial]
	turn  time.Time // when the next dial may go out although this one has no answer
}

// takeTurn reports whether a dial may go out now. Otherwise resumeDials sends it when it may.
func (m *connectionManager) takeTurn(d *dial, target netip.AddrPort) bool {
	p := m.paces[target]
	if p == nil {
		p = &dialPace{target: target}
		m.paces[target] = p
	}
	d.pace = p
	if p.underWay < dialsAtOnce && p.waiting.Len() == 0 {
		p.underWay++
		d.turn = time.Now().Add(dialTurn)
		return true
	}
	d.place.Value = d
	p.waiting.Push(&d.place)
	return false
}

// endTurn notes that a dial has been answered, has ended, or no longer delays others.
func (m *connectionManager) endTurn(d *dial) {
	p := d.pace
	if p == nil {
		return
	}
	d.pace, d.turn = nil, time.Time{}
	if !p.waiting.Remove(&d.place) {
		p.underWay--
	}
	switch {
	case p.waiting.Len() > 0 && !p.listed:
		p.listed = true
		m.resumable.Push(p)
		m.ctx.poke()
	case p.waiting.Len() == 0 && p.underWay == 0 && m.paces[p.target] == p:
		delete(m.paces, p.target)
	}
}

// resumeDials sends the requests that may go out now, and returns how many.
func (m *connectionManager) resumeDials() (n int) {
	for range m.resumable.Len() { // dials that fail at once are for the next pass
		p := m.resumable.Pop()
		p.listed = false
		for p.underWay < dialsAtOnce && p.waiting.Len() > 0 {
			d := p.waiting.Pop().Value
			p.underWay++
			d.turn = time.Now().Add(dialTurn)
			d.schedule()
			d.send()
			n++
		}
	}
	return n
}
