package plan

// Layout is where the data of one engine's connections lie, at both ends alike: slots of the
// same size, first those that data come from, then those that they go to.
type Layout struct {
	Stride int // bytes of a slot
	Out    int // slots that are sent, written from, and read by the peer
	In     int // slots that are received into, written by the peer, and read into
	depth  int // slots of a connection; zero: connections may share one
}

const (
	slotAlign = 64
	// sharedMemory bounds the slots where nothing is verified: connections share them then, as
	// those of perftest share one buffer for all operations, and caches see the same.
	sharedMemory = 64 << 20
)

// Layout is that of an engine.
func (p *Plan) Layout(engine int) Layout {
	largest := 8
	for _, s := range p.Sizes {
		largest = max(largest, s)
	}
	l := Layout{Stride: (largest + slotAlign - 1) &^ (slotAlign - 1)}
	conns := p.ConnectionsOf(engine)
	switch {
	case p.Test.Op.Atomic():
		l.Out, l.In = conns, conns // each connection has a word of its own
	case p.Verify && p.Test.Kind == Bandwidth:
		l.depth = p.Depth
		l.Out, l.In = conns*p.Depth, conns*p.Depth
		if p.Test.Op == Send {
			l.In = p.RecvDepth
		}
	case p.Verify && p.Test.Op == Send:
		l.Out, l.In = 1, p.RecvDepth
	default:
		l.Out = min(conns, max(1, sharedMemory/l.Stride))
		l.In = l.Out
	}
	return l
}

// Size is the bytes of all slots.
func (l Layout) Size() int64 { return int64(l.Stride) * (int64(l.Out) + int64(l.In)) }

// OutOffset is where a slot that data come from begins.
func (l Layout) OutOffset(slot int) int { return l.Stride * slot }

// InOffset is where a slot that data go to begins.
func (l Layout) InOffset(slot int) int { return l.Stride * (l.Out + slot) }

// Slot is that of an operation: the i-th of those that a connection has under way.
func (l Layout) Slot(connection, i int) int {
	if l.depth > 0 {
		return connection*l.depth + i
	}
	return connection % l.Out
}

// Memory is what all engines of an end register.
func (p *Plan) Memory() (total int64) {
	for e := range p.Engines {
		total += p.Layout(e).Size()
	}
	return total
}
