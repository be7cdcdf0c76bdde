//go:build !linux

// Package pathmtu asks the system for the path MTU to another host.
package pathmtu

import "net/netip"

// Of returns false: only Linux reports the path MTU.
func Of(from, to netip.Addr) (bytes int, ok bool) { return 0, false }
