package capture

import "github.com/verbena-rdma/verbena/soft/internal/roce/wire"

// stream is the packets of one sequence of packet sequence numbers in one direction: the requests
// of a queue pair, or the responses to the requests of its peer.
type stream struct {
	begun    bool
	next     uint32 // the number expected next
	last     uint32 // of the packet before
	slack    uint32 // how many more the last packet, a read, may have taken: the path MTU is not known
	missing  []missing
	recent   []recent // by number modulo the length, a power of two
	tracked  bool     // both what was sent and what was received is in the capture
	arrived  uint32   // of these, the number expected next at the receiver
	arriving bool
}

// missing is a range of numbers that were skipped, at some time.
type missing struct {
	from, to uint32 // to is not part of it
	at       int64
}

// recent is a packet that was recorded a while ago.
type recent struct {
	psn      uint32
	used     bool
	acked    bool
	lost     bool   // the first copy counts as lost
	sent     uint16 // how often it was recorded; if tracked, by the sender
	received uint16 // if tracked, by the receiver
	at       int64  // the last time
}

const (
	firstRecent = 64
	maxRecent   = 1024
	maxMissing  = 64
	// maxJump is the largest gap. Behind a larger one a new sequence begins, such as that of
	// another connection of the same queue pairs.
	maxJump = 1 << 16
)

// verdict is what a packet is in its stream.
type verdict uint8

const (
	isNew verdict = iota
	isLate
	isRepeat
)

// observe places a packet that takes n numbers in the sequence. gap is the number of packets that
// are missing before it. If it is late, skipped is when they were.
func (s *stream) observe(psn, n uint32, at int64) (v verdict, gap uint32, skipped int64) {
	d := wire.PSNDiff(psn, s.next)
	if !s.begun || d > maxJump || d < -maxJump {
		if s.begun {
			s.missing = s.missing[:0]
		}
		s.begun, s.next, s.slack, s.arriving = true, wire.PSNAdd(psn, int(n)), 0, false
		return isNew, 0, 0
	}
	if d >= 0 {
		if uint32(d) > s.slack {
			gap = uint32(d)
			if len(s.missing) == maxMissing {
				s.missing = append(s.missing[:0], s.missing[1:]...)
			}
			s.missing = append(s.missing, missing{s.next, psn, at})
		}
		s.next, s.slack = wire.PSNAdd(psn, int(n)), 0
		return isNew, gap, 0
	}
	for i, m := range s.missing {
		if wire.PSNDiff(psn, m.from) < 0 || wire.PSNDiff(psn, m.to) >= 0 {
			continue
		}
		behind := missing{wire.PSNAdd(psn, int(n)), m.to, m.at}
		s.missing[i].to = psn
		if wire.PSNDiff(behind.to, behind.from) > 0 && len(s.missing) < maxMissing {
			s.missing = append(s.missing, behind)
		}
		if s.missing[i].from == psn {
			s.missing = append(s.missing[:i], s.missing[i+1:]...)
		}
		return isLate, 0, m.at
	}
	return isRepeat, 0, 0
}

// packets is the number of packets of a message of n bytes.
func packets(n uint32, mtu int) uint32 {
	return uint32(min(max((uint64(n)+uint64(mtu)-1)/uint64(mtu), 1), maxJump))
}

// acknowledged forgets the missing packets up to psn, and returns how many there were.
func (s *stream) acknowledged(psn uint32) (n int64) {
	kept := s.missing[:0]
	for _, m := range s.missing {
		if wire.PSNDiff(psn, m.from) < 0 {
			kept = append(kept, m)
			continue
		}
		end := m.to
		if wire.PSNDiff(psn, m.to) < 0 {
			end = wire.PSNAdd(psn, 1)
			kept = append(kept, missing{end, m.to, m.at})
		}
		n += int64(wire.PSNDiff(end, m.from))
	}
	s.missing = kept
	return n
}

// find returns a recent packet, or nil.
func (s *stream) find(psn uint32) *recent {
	if len(s.recent) == 0 {
		return nil
	}
	if r := &s.recent[int(psn)&(len(s.recent)-1)]; r.used && r.psn == psn {
		return r
	}
	return nil
}

// note returns the place of a packet among the recent ones. Another one may have to go, which
// forget is called with.
func (s *stream) note(psn uint32, room *int, forget func(*recent)) *recent {
	if len(s.recent) == 0 {
		s.grow(firstRecent, room)
	}
	r := &s.recent[int(psn)&(len(s.recent)-1)]
	for r.used && r.psn != psn && len(s.recent) < maxRecent && wire.PSNDiff(psn, r.psn) < maxRecent && *room > 0 {
		s.grow(2*len(s.recent), room)
		r = &s.recent[int(psn)&(len(s.recent)-1)]
	}
	if r.psn != psn || !r.used {
		if r.used {
			forget(r)
		}
		*r = recent{psn: psn, used: true}
	}
	return r
}

// grow makes room for n recent packets.
func (s *stream) grow(n int, room *int) {
	old := s.recent
	*room -= n - len(old)
	s.recent = make([]recent, n)
	for _, r := range old {
		if r.used {
			s.recent[int(r.psn)&(n-1)] = r
		}
	}
}
