package srd

import "math/rand/v2"

// spray holds packets back, so that packets leave in another order than that of their sequence
// numbers.
type spray struct {
	random         rand.PCG
	departed       uint32 // packets that have left
	departedBefore uint32 // departed at the start of this pass
	held           [maxHeld]heldPacket
	n              int
	due            int // index of the packet found last
}

type heldPacket struct {
	psn   uint32
	after uint32 // the packet leaves when so many have departed
}

const (
	maxHeld = 4
	// One packet in holdShare is held, until 1 to holdPackets later ones have left.
	holdShare   = 4
	holdPackets = 8
)

// hold reports whether the next packet, which is of m, is held back. A packet that would leave
// alone is not held.
func (c *Context) hold(m *message) bool {
	s := &c.spray
	alone := c.inFlight == 0 && s.n == 0 && m.next == nil && m.sent+1 >= m.packets
	return s.n < maxHeld && !alone && s.random.Uint64()%holdShare == 0
}

func (c *Context) sprayHold(psn uint32) {
	s := &c.spray
	c.t.counters.Held++
	s.held[s.n] = heldPacket{psn, s.departed + 1 + uint32(s.random.Uint64()%holdPackets)}
	s.n++
}

// sprayDue reports whether a packet has been held long enough, and sets due to its index.
func (c *Context) sprayDue() bool {
	s := &c.spray
	for i := range s.n {
		if int32(s.departed-s.held[i].after) >= 0 {
			s.due = i
			return true
		}
	}
	return false
}

// releaseIdle reports whether a held packet can leave because nothing else is left to send,
// and sets due to its index. A message of one packet that was posted alone waits for the next
// message, or for the answers to the packets under way. This reorders messages that are posted
// one by one, too.
func (c *Context) releaseIdle() bool {
	s := &c.spray
	for i := range s.n {
		x := c.slot(s.held[i].psn)
		if c.inFlight == 0 || s.departed != s.departedBefore || !x.live() || x.msg.packets > 1 {
			s.due = i
			return true
		}
	}
	return false
}

// sprayRelease removes and returns the packet at due.
func (c *Context) sprayRelease() uint32 {
	s := &c.spray
	psn := s.held[s.due].psn
	s.n--
	s.held[s.due] = s.held[s.n]
	return psn
}
