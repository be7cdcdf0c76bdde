package main

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/rdma"
)

const (
	pings      = 4  // datagrams of a client in flight
	echoes     = 32 // datagrams of the server in flight
	pingHeader = 16
	// echoAfter is when a datagram counts as lost. A later echo is checked too.
	echoAfter = 250 * time.Millisecond
)

// pinger sends datagrams to the UD server, which sends them back. Any datagram may be lost.
type pinger struct {
	e          *end
	to         *rdma.Peer
	key        uint64
	budget     int // of echoes; 0: none
	echoed     int
	steady     bool
	finishing  bool
	onFinished func() // called when the budget is used up, or after leave
	slots      [pings]ping
}

// ping is one datagram in flight.
type ping struct {
	p        *pinger
	number   int
	at       int
	sequence uint64
	length   int
	busy     bool // the datagram, or the pause before the next, is running
	sending  bool
}

func (e *end) newPinger(to *rdma.Peer, client string) *pinger {
	p := &pinger{e: e, to: to, key: key(e.seed, client)}
	for i := range p.slots {
		p.slots[i] = ping{p: p, number: i, at: area(0) + i*maxMessage}
	}
	e.pinger, e.request = p, p.received
	e.stats.Connections++
	return p
}

func (p *pinger) busy() bool {
	for i := range p.slots {
		if p.slots[i].busy || p.slots[i].sending {
			return true
		}
	}
	return false
}

// work sends as many datagrams as possible.
func (p *pinger) work() {
	for i := range p.slots {
		if s := &p.slots[i]; !s.busy && !s.sending {
			s.next()
		}
	}
}

func (p *pinger) finish() {
	p.finishing = true
	p.check()
}

func (p *pinger) check() {
	if p.finishing && !p.busy() && p.onFinished != nil {
		gone := p.onFinished
		p.onFinished = nil
		gone()
	}
}

// next sends the next datagram, unless the pinger ends or is paused.
func (s *ping) next() {
	p, e := s.p, s.p.e
	if p.budget > 0 && p.echoed >= p.budget {
		p.finishing = true
	}
	if p.finishing || e.paused {
		p.check()
		return
	}
	s.busy = true
	s.sequence++
	s.length = pingHeader + size(e.rng, e.maxMessage-pingHeader)
	b := e.mem.Bytes()[s.at:][:s.length]
	binary.LittleEndian.PutUint64(b, uint64(s.number))
	binary.LittleEndian.PutUint64(b[8:], s.sequence)
	e.pattern.fill(b[pingHeader:], p.key+uint64(s.number), s.sequence)
	task, err := e.datagramTasks.Send(p.to, bufinv.Source(e.mem, s.at, s.length))
	if err == nil {
		task.SetUserData(s)
		err = task.Submit()
	}
	if err != nil {
		e.wrong(fmt.Errorf("send a datagram to %v: %w", p.to, err))
		return
	}
	s.sending = true
	sequence := s.sequence
	e.after(echoAfter, func() {
		if s.busy && s.sequence == sequence {
			e.stats.Lost++
			s.rest()
		}
	})
}

// rest schedules the next datagram; a client that stays pauses before it.
func (s *ping) rest() {
	e := s.p.e
	follow := func() {
		s.busy = false
		if !s.sending {
			s.next()
		}
	}
	if s.p.steady {
		s.sequence++ // an echo from now on is late
		e.after(time.Duration(e.rng.Int64N(int64(maxPause))), follow)
	} else {
		follow()
	}
}

// done handles a completed task.
func (s *ping) done(t *rdma.Task, err error) {
	e := s.p.e
	e.check(t.Free())
	if s.p.to == nil { // an echo sent by the server
		s.sending = false
		return
	}
	if err != nil {
		e.wrong(fmt.Errorf("a datagram to %v failed: %w", s.p.to, err))
	}
	s.sending = false
	if !s.busy {
		s.next()
	}
}

// received handles an echo, which may be late or a duplicate.
func (p *pinger) received(m *rdma.Message) {
	e, b := p.e, m.Bytes()
	if len(b) < pingHeader || binary.LittleEndian.Uint64(b) >= pings {
		e.wrong(fmt.Errorf("the data is wrong: a datagram from %v of %d bytes is not an echo", m.Peer(), len(b)))
		return
	}
	s, sequence := &p.slots[binary.LittleEndian.Uint64(b)], binary.LittleEndian.Uint64(b[8:])
	err := e.pattern.check(b[pingHeader:], p.key+uint64(s.number), sequence)
	current := s.busy && sequence == s.sequence
	if err == nil && current && len(b) != s.length {
		err = fmt.Errorf("the data is wrong: received %d bytes, want %d", len(b), s.length)
	}
	if err != nil {
		e.wrong(fmt.Errorf("an echo from %v: %w", m.Peer(), err))
		return
	}
	e.stats.Verified++
	if !current {
		return
	}
	e.stats.Ops[opDatagram]++
	e.stats.Bytes += uint64(len(b))
	p.echoed++
	s.rest()
}

// answerPings makes the server send datagrams back.
func (e *end) answerPings() {
	nobody := &pinger{e: e}
	var slots [echoes]ping
	for i := range slots {
		slots[i] = ping{p: nobody, at: area(0) + i*maxMessage}
	}
	e.request = func(m *rdma.Message) {
		for i := range slots {
			if slots[i].sending {
				continue
			}
			s := &slots[i]
			copy(e.mem.Bytes()[s.at:], m.Bytes())
			task, err := e.datagramTasks.Send(m.Peer(), bufinv.Source(e.mem, s.at, m.Length()))
			if err == nil {
				task.SetUserData(s)
				err = task.Submit()
			}
			if err != nil {
				e.wrong(fmt.Errorf("answer a datagram of %v: %w", m.Peer(), err))
				return
			}
			s.sending = true
			e.stats.Verified++
			return
		}
		e.stats.Lost++ // as if the network had lost it
	}
}
