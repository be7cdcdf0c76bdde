package plan

// Layout is the layout of the memory for one engine's connections, the same at both ends:
// slots of one size, first the source slots, then the destination slots.
type Layout struct {
	Stride int // bytes of a slot
	Out    int // source slots: sent from, written from, and read by the peer
	In     int // destination slots: received into, written by the peer, and read into
	depth  int // slots of a connection; zero: connections may share slots
}

const (
	slotAlign = 64
	// sharedMemory bounds the bytes of slots if nothing is verified. Connections then share
	// slots, as all operations of perftest share one buffer, so that caches have the same
	// effect in both.
	sharedMemory = 64 << 20
)

// Layout returns the layout of an engine.
func (p *Plan) Layout(engine int) Layout {
	largest := 8
	for _, s := range p.Sizes {
		largest = max(largest, s)
	}
	l := Layout{Stride: (largest + slotAlign - 1) &^ (slotAlign - 1)}
	conns := p.ConnectionsOf(engine)
	if p.Test.Kind == Batches {
		conns = p.Batch // each item is as a connection
	}
	switch {
	case p.Test.Op.Atomic() || p.Verify && p.Test.Kind == Batches:
		l.Out, l.In = conns, conns // each connection has a slot of its own
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

// Size is the size of all slots in bytes.
func (l Layout) Size() int64 { return int64(l.Stride) * (int64(l.Out) + int64(l.In)) }

// OutOffset is the offset of a source slot.
func (l Layout) OutOffset(slot int) int { return l.Stride * slot }

// InOffset is the offset of a destination slot.
func (l Layout) InOffset(slot int) int { return l.Stride * (l.Out + slot) }

// Slot returns the slot of the i-th operation that a connection has in flight.
func (l Layout) Slot(connection, i int) int {
	if l.depth > 0 {
		return connection*l.depth + i
	}
	return connection % l.Out
}

// Memory is how many bytes all engines of an end register.
func (p *Plan) Memory() (total int64) {
	for e := range p.Engines {
		total += p.Layout(e).Size()
	}
	return total
}
