package traffic

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/internal/pattern"
	"github.com/verbena-rdma/verbena/rdma"
)

const (
	pings      = 4  // datagrams of a client in flight
	echoes     = 32 // datagrams of the server in flight
	pingHeader = 16
	// echoAfter is when a datagram counts as lost. A later echo is checked too.
	echoAfter = 250 * time.Millisecond
)

// Pinger sends datagrams to a UD server, which sends them back. Any datagram may be lost.
type Pinger struct {
	LinkConfig
	e          *End
	to         *rdma.Peer
	key        uint64
	echoed     int
	finishing  bool
	onFinished func() // called when the budget is used up, or after Finish
	slots      [pings]ping
}

// ping is one datagram in flight.
type ping struct {
	p        *Pinger
	number   int
	at       int
	sequence uint64
	length   int
	busy     bool // the datagram, or the pause before the next, is running
	sending  bool
}

// Ping sends datagrams to a server, and calls ended at the end of the work.
func (e *End) Ping(to *rdma.Peer, cfg LinkConfig, ended func()) {
	p := &Pinger{LinkConfig: cfg, e: e, to: to, key: pattern.Key(e.Seed, cfg.Client), onFinished: ended}
	for i := range p.slots {
		p.slots[i] = ping{p: p, number: i, at: e.area(0) + i*maxMessage}
	}
	e.pinger, e.request = p, p.received
	e.Stats.Connections++
	p.finishing = e.Leaving != nil && e.Leaving()
	p.work()
}

// Pinging reports whether datagrams are sent to a server.
func (e *End) Pinging() bool { return e.pinger != nil }

func (p *Pinger) busy() bool {
	for i := range p.slots {
		if p.slots[i].busy || p.slots[i].sending {
			return true
		}
	}
	return false
}

// work sends as many datagrams as possible.
func (p *Pinger) work() {
	for i := range p.slots {
		if s := &p.slots[i]; !s.busy && !s.sending {
			s.next()
		}
	}
}

// Finish ends the work.
func (p *Pinger) Finish() {
	p.finishing = true
	p.check()
}

func (p *Pinger) check() {
	if p.finishing && !p.busy() && p.onFinished != nil {
		gone := p.onFinished
		p.onFinished = nil
		gone()
	}
}

// next sends the next datagram, unless the pinger ends or is paused.
func (s *ping) next() {
	p, e := s.p, s.p.e
	if p.Budget > 0 && p.echoed >= p.Budget {
		p.finishing = true
	}
	if p.finishing || e.paused {
		p.check()
		return
	}
	s.busy = true
	s.sequence++
	s.length = pingHeader + Size(e.Rand, e.maxMessage-pingHeader)
	b := e.Mem.Bytes()[s.at:][:s.length]
	binary.LittleEndian.PutUint64(b, uint64(s.number))
	binary.LittleEndian.PutUint64(b[8:], s.sequence)
	pattern.Fill(b[pingHeader:], p.key+uint64(s.number), int(s.sequence)*stride)
	s.sending = e.sendDatagram(s, p.to, s.length)
	sequence := s.sequence
	e.after(echoAfter, func() {
		if s.busy && s.sequence == sequence {
			e.Stats.Lost++
			s.rest()
		}
	})
}

// sendDatagram sends the datagram in the memory of s.
func (e *End) sendDatagram(s *ping, to *rdma.Peer, n int) bool {
	task, err := e.datagramTasks.Send(to, bufinv.Source(e.Mem, s.at, n))
	if err == nil {
		task.SetUserData(s)
		err = task.Submit()
	}
	if err != nil {
		e.Wrong(fmt.Errorf("send a datagram to %v: %w", to, err))
	}
	return err == nil
}

// rest schedules the next datagram.
func (s *ping) rest() {
	follow := func() {
		s.busy = false
		if !s.sending {
			s.next()
		}
	}
	if s.p.Pause > 0 {
		s.sequence++ // an echo from now on is late
		s.p.e.After(s.p.Pause, follow)
	} else {
		follow()
	}
}

// done handles a completed task.
func (s *ping) done(t *rdma.Task, err error) {
	e := s.p.e
	e.Check(t.Free())
	s.sending = false
	if s.p.to == nil { // an echo sent by the server
		return
	}
	if err != nil {
		e.Wrong(fmt.Errorf("a datagram to %v failed: %w", s.p.to, err))
	}
	if !s.busy {
		s.next()
	}
}

// received handles an echo, which may be late or a duplicate.
func (p *Pinger) received(m *rdma.Message) {
	e, b := p.e, m.Bytes()
	if len(b) < pingHeader || binary.LittleEndian.Uint64(b) >= pings {
		e.Wrong(fmt.Errorf("the data is wrong: a datagram from %v of %d bytes is not an echo", m.Peer(), len(b)))
		return
	}
	s, sequence := &p.slots[binary.LittleEndian.Uint64(b)], binary.LittleEndian.Uint64(b[8:])
	err := pattern.Check(b[pingHeader:], p.key+uint64(s.number), int(sequence)*stride)
	current := s.busy && sequence == s.sequence
	if err == nil && current && len(b) != s.length {
		err = fmt.Errorf("the data is wrong: received %d bytes, want %d", len(b), s.length)
	}
	if err != nil {
		e.Wrong(fmt.Errorf("an echo from %v: %w", m.Peer(), err))
		return
	}
	e.Stats.Verified++
	if !current {
		return
	}
	e.Stats.Ops[opDatagram]++
	e.Stats.Bytes += uint64(len(b))
	p.echoed++
	s.rest()
}

// AnswerPings makes an end send datagrams back.
func (e *End) AnswerPings() {
	nobody := &Pinger{e: e}
	var slots [echoes]ping
	for i := range slots {
		slots[i] = ping{p: nobody, at: e.area(0) + i*maxMessage}
	}
	e.request = func(m *rdma.Message) {
		for i := range slots {
			s := &slots[i]
			if s.sending {
				continue
			}
			copy(e.Mem.Bytes()[s.at:], m.Bytes())
			if s.sending = e.sendDatagram(s, m.Peer(), m.Length()); s.sending {
				e.Stats.Verified++
			}
			return
		}
		e.Stats.Lost++ // as if the network had lost it
	}
}
