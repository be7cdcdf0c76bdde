//go:build !linux

package registry

import (
	"context"
	"net/netip"
)

// Complete: listeners of this machine need not be registered.
const Complete = false

// Entries are the entries of one listener.
type Entries struct{}

// Close does nothing here.
func (*Entries) Close() {}

// Add does nothing here.
func (*Entries) Add(Space, netip.AddrPort, netip.AddrPort) error { return nil }

// Find finds nothing here.
func Find(context.Context, Space, netip.AddrPort) (device netip.AddrPort, err error) {
	return device, ErrNotRegistered
}

// Known finds nothing here.
type Known struct{}

// Find finds nothing here.
func (*Known) Find(context.Context, Space, netip.AddrPort) (device netip.AddrPort, err error) {
	return device, ErrNotRegistered
}

// Look finds nothing here.
func (*Known) Look(Space, netip.AddrPort) (device netip.AddrPort, ok bool) { return device, false }

// Close does nothing here.
func (*Known) Close() {}
