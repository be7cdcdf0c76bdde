package transport

import "github.com/verbena-rdma/verbena/soft/internal/roce/wire"

// responseEnds holds the end of each read and atomic request packet under way: the sequence number
// after its last response. A request packet that asks again must not ask for more than an
// earlier one did: the peer may no longer know that it has executed both (IBTA 9.7.5.1.4).
type responseEnds struct{ ends Ring[uint32] }

// add notes a request packet, which may be a part of one that is known.
func (a *responseEnds) add(end uint32) {
	if known, ok := a.end(wire.PSNAdd(end, -1)); ok && known == end || a.ends.Full() {
		return
	}
	*a.ends.Push() = end
	for i := a.ends.tail - 1; i != a.ends.head && wire.PSNDiff(*a.ends.at(i - 1), end) > 0; i-- {
		*a.ends.at(i), *a.ends.at(i - 1) = *a.ends.at(i - 1), end
	}
}

// drop forgets the request packets whose responses end at or before una, and returns their
// number.
func (a *responseEnds) drop(una uint32) (n int) {
	for a.ends.Len() > 0 && wire.PSNDiff(*a.ends.First(), una) <= 0 {
		a.ends.Pop()
		n++
	}
	return n
}

// end returns the end of the request packet that asks for psn.
func (a *responseEnds) end(psn uint32) (end uint32, ok bool) {
	if a.ends.Len() == 0 || wire.PSNDiff(*a.ends.at(a.ends.tail - 1), psn) <= 0 {
		return 0, false // it has not been asked for yet
	}
	for i := a.ends.head; i != a.ends.tail; i++ {
		if end = *a.ends.at(i); wire.PSNDiff(end, psn) > 0 {
			return end, true
		}
	}
	return 0, false
}

// start returns the start of the request packet that asks for psn, if another request packet
// precedes it.
func (a *responseEnds) start(psn uint32) (start uint32, ok bool) {
	for i := a.ends.head; i != a.ends.tail; i++ {
		if end := *a.ends.at(i); wire.PSNDiff(end, psn) <= 0 {
			start, ok = end, true
		}
	}
	return start, ok
}
