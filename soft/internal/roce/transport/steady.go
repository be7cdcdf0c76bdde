package transport

// steadiness says for how many packets nothing was lost or late. The more, the more a read
// request asks for, and the fewer acknowledgements a long message asks for: both cost less then,
// while a repetition, or the time until it is known to be needed, costs more.
type steadiness struct {
	level   uint // by which power of two pieces are longer than at first
	packets int  // that have arrived since the level changed, or one was late
}

const (
	maxLevel = 3
	// steadyPackets is how many packets have to arrive for the next level.
	steadyPackets = 1 << 14
)

// arrived notes packets that the peer has acknowledged, or has responded with.
func (s *steadiness) arrived(packets int) {
	if s.level == maxLevel {
		return
	}
	if s.packets += packets; s.packets >= steadyPackets {
		s.level++
		s.packets = 0
	}
}

// late notes that an answer was missed for a moment.
func (s *steadiness) late() {
	s.packets = 0
	if s.level > 0 {
		s.level--
	}
}

// lost notes that packets have to be repeated.
func (s *steadiness) lost() { *s = steadiness{} }
