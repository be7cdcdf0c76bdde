//go:build !linux

package portowner

import "net/netip"

// Find returns nil: the owner of a port cannot be found on this system.
func Find(netip.AddrPort) *Owner { return nil }
