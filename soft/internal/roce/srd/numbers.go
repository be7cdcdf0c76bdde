package srd

import (
	"net/netip"

	"github.com/verbena-rdma/verbena/verbs"
)

// Numbers assigns numbers to the addresses that address handles lead to.
type Numbers struct {
	entries map[netip.AddrPort]*handleNumber
	free    []uint16 // numbers below next that are not in use
	next    uint16
}

type handleNumber struct {
	number uint16
	refs   int
}

// Of returns the number of the handles that lead to an address, or verbs.NoAH.
func (h *Numbers) Of(peer netip.AddrPort) uint16 {
	if n := h.entries[peer]; n != nil {
		return n.number
	}
	return verbs.NoAH
}

// Add adds a handle and returns the number of its address: verbs.NoAH if all are in use.
func (h *Numbers) Add(peer netip.AddrPort) uint16 {
	n := h.entries[peer]
	switch {
	case n != nil:
	case len(h.free) > 0:
		last := len(h.free) - 1
		n = &handleNumber{number: h.free[last]}
		h.free = h.free[:last]
	case h.next < verbs.NoAH:
		n = &handleNumber{number: h.next}
		h.next++
	default:
		n = &handleNumber{number: verbs.NoAH}
	}
	if h.entries == nil {
		h.entries = make(map[netip.AddrPort]*handleNumber)
	}
	h.entries[peer] = n
	n.refs++
	return n.number
}

// Remove removes a handle, and reports whether it was the last one for its address.
func (h *Numbers) Remove(peer netip.AddrPort) bool {
	n := h.entries[peer]
	if n.refs--; n.refs > 0 {
		return false
	}
	delete(h.entries, peer)
	if n.number != verbs.NoAH {
		h.free = append(h.free, n.number)
	}
	return true
}
