// Package gid chooses the entry of a port's GID table that a context uses as its
// address.
package gid

import (
	"fmt"
	"strings"

	"github.com/verbena-rdma/verbena/internal/errs"
	"github.com/verbena-rdma/verbena/verbs"
)

// Find reads the GID table of a device's port, and chooses from it as Choose does.
func Find(dev verbs.Device, port int, layer verbs.LinkLayer, want *int) (verbs.GIDEntry, error) {
	table, err := dev.GIDs(port)
	if err != nil {
		return verbs.GIDEntry{}, fmt.Errorf("read the GID table of port %d of %s: %w", port, dev.Name(), err)
	}
	e, err := Choose(table, layer, want)
	if err != nil {
		return e, fmt.Errorf("port %d of %s: %w", port, dev.Name(), err)
	}
	return e, nil
}

// Choose returns the entry with the index *want. If want is nil, it returns the best entry:
// RoCEv2 on IPv4 before RoCEv2 on IPv6, link-local addresses last. Its errors match
// errs.ErrGID, and name the usable entries.
func Choose(table []verbs.GIDEntry, layer verbs.LinkLayer, want *int) (verbs.GIDEntry, error) {
	best, bestRank := verbs.GIDEntry{}, 0
	var usable []string
	for _, e := range table {
		r := rank(e, layer)
		if r == 0 {
			continue
		}
		if want != nil && *want == e.Index {
			return e, nil
		}
		usable = append(usable, fmt.Sprintf("%d (%v, %v)", e.Index, e.GID.Addr(), e.Type))
		if r > bestRank {
			best, bestRank = e, r
		}
	}
	switch {
	case len(usable) == 0:
		return best, fmt.Errorf("%w: none of the %d entries of the GID table is for RoCEv2 or InfiniBand; give the network interface an IP address", errs.ErrGID, len(table))
	case want != nil:
		return best, fmt.Errorf("%w at index %d; use one of %s", errs.ErrGID, *want, strings.Join(usable, ", "))
	}
	return best, nil
}

// rank orders the entries by preference; zero is not usable.
func rank(e verbs.GIDEntry, layer verbs.LinkLayer) int {
	addr := e.GID.Addr()
	switch {
	case e.GID == verbs.GID{}:
		return 0
	// Amazon's EFA is on neither link layer, and its GIDs are of InfiniBand's type.
	case layer == verbs.LinkInfiniBand || layer == verbs.LinkUnspecified:
		if e.Type != verbs.GIDInfiniBand {
			return 0
		}
		return 1
	case e.Type != verbs.GIDRoCEv2:
		return 0
	case addr.IsLinkLocalUnicast():
		return 1
	case addr.Is4():
		return 3
	}
	return 2
}
