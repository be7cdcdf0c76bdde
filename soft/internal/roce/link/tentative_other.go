//go:build !linux

package link

import "net/netip"

// isTentative reports false: it is not known here.
func isTentative(netip.Addr) bool { return false }
