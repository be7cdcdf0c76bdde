// Package quota shares a limited number of places among sources, so that no source keeps others
// out.
package quota

// Places counts the places that each source holds. The zero value is empty.
//
// A source may hold as many places as are free: one alone takes half of them, two take a third
// each, and a source that comes later always finds some, unless there are as many sources as places.
type Places[S comparable] struct {
	held  map[S]int
	taken int
}

// Taken is the number of places that all sources hold.
func (p *Places[S]) Taken() int { return p.taken }

// Held is the number of places that a source holds.
func (p *Places[S]) Held(source S) int { return p.held[source] }

// Fits reports whether a source may take one of limit places.
func (p *Places[S]) Fits(source S, limit int) bool { return p.held[source] < limit-p.taken }

// Take takes a place for a source.
func (p *Places[S]) Take(source S) {
	if p.held == nil {
		p.held = make(map[S]int)
	}
	p.held[source]++
	p.taken++
}

// Release gives back a place.
func (p *Places[S]) Release(source S) {
	p.taken--
	if p.held[source]--; p.held[source] == 0 {
		delete(p.held, source)
	}
}
