package gsi

import (
	"fmt"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/verbena-rdma/verbena/internal/routes"
	"github.com/verbena-rdma/verbena/verbs"
)

// endpointAt returns the index of the endpoint with an address; -1: there is none.
func (g *Services) endpointAt(addr netip.Addr) int {
	return slices.IndexFunc(g.cfg.Endpoints, func(e Endpoint) bool { return e.Addr().Addr() == addr })
}

func (g *Services) addresses() (list []netip.Addr) {
	for _, e := range g.cfg.Endpoints {
		list = append(list, e.Addr().Addr())
	}
	return list
}

// endpointTo returns the endpoint for packets to a peer: the only one of the peer's kind, or the one
// that the system's routes name, or else the one of the peer's kind whose address has the longest prefix
// in common with the peer's.
func (g *Services) endpointTo(peer netip.Addr) (index int, err error) {
	best, common, several := -1, -1, false
	for i, e := range g.cfg.Endpoints {
		own := e.Addr().Addr()
		if own.Is4() != peer.Is4() || own.IsLoopback() != peer.IsLoopback() || own.IsLinkLocalUnicast() != peer.IsLinkLocalUnicast() {
			continue
		}
		several = best >= 0
		if n := commonPrefix(own, peer); n > common {
			best, common = i, n
		}
	}
	if best >= 0 && (!several || g.cfg.Network.Simulated()) {
		return best, nil // the system need not be asked
	}
	if e := g.endpointAt(routes.Source(peer)); e >= 0 {
		return e, nil
	}
	if best < 0 {
		err := fmt.Errorf("%w: device %s has the addresses %v", verbs.ErrNoRoute, g.cfg.Device, g.addresses())
		if !g.cfg.Network.Simulated() && routes.Local(peer) { // packets to it take the loopback interface, whatever interface has the address
			err = fmt.Errorf("%w, and %v belongs to another interface of this machine: use the same device at both ends", err, peer)
		}
		return 0, err
	}
	return best, nil
}

// commonPrefix returns the length of the common prefix of two addresses, in bits.
func commonPrefix(a, b netip.Addr) int {
	x, y := a.As16(), b.As16()
	for i := range x {
		if diff := x[i] ^ y[i]; diff != 0 {
			return 8*i + bits.LeadingZeros8(diff)
		}
	}
	return 8 * len(x)
}
