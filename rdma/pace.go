package rdma

import (
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/internal/fifo"
)

const (
	// dialsAtOnce is how many requests go to one address without waiting for answers. Of
	// thousands at the same moment most would overrun the buffers of the peer's queue pair 1,
	// or the backlog of its listener, and be repeated a second later.
	dialsAtOnce = 256
	// dialTurn is after how long without an answer the next request may go out: the peer's
	// program may keep one for as long as it likes.
	dialTurn = 100 * time.Millisecond
)

// dialPace is the dials to one address.
type dialPace struct {
	target   netip.AddrPort
	underWay int              // that count against dialsAtOnce
	waiting  fifo.List[*dial] // in the order in which they came
	listed   bool             // among those of the manager to be resumed
}

// pacedDial is a dial's part in a dialPace.
type pacedDial struct {
	pace  *dialPace // nil: neither under way nor waiting
	place fifo.Node[*dial]
	turn  time.Time // when the next one may go out although this one has no answer
}

// takeTurn reports whether a dial may go out now. Otherwise it is resumed when it may.
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

// endTurn notes that a dial has its answer, has ended, or had its turn.
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
	for range m.resumable.Len() { // those that fail at once are for the next pass
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
