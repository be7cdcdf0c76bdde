// Package quota shares a limited number of places among sources, so that a few sources do not keep
// others out.
package quota

import "net/netip"

// Network is the source that an address counts as: an IPv4 address itself, and the /64 network of
// an IPv6 address, since a host may use all addresses of its network.
func Network(addr netip.Addr) netip.Addr {
	addr = addr.Unmap()
	if !addr.Is6() {
		return addr
	}
	network, _ := addr.Prefix(64) // it fails only for IPv4
	return network.Addr().WithZone(addr.Zone())
}

// Places counts the places that each source holds. The zero value is empty.
//
// A source may hold as many places as are free. So one source leaves at least half of them free, and
// n sources that take one after the other all that they may leave a 2^n-th, rounded down: of 1,024
// places, ten sources leave one, and eleven leave none.
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
