// Package hostaddr distinguishes addresses of a single host from broadcast, multicast and
// unspecified addresses, and lists those of this host.
package hostaddr

import "net/netip"

// limitedBroadcast addresses all hosts of the network that a packet is sent on (RFC 919).
var limitedBroadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// Unusable returns why an address cannot belong to a peer, or an empty text if it can.
func Unusable(addr netip.Addr) string {
	switch addr = addr.Unmap(); {
	case !addr.IsValid():
		return "no address"
	case addr.IsUnspecified():
		return "the unspecified address"
	case addr.IsMulticast():
		return "a multicast group"
	case addr == limitedBroadcast:
		return "the broadcast address"
	}
	return ""
}

// Broadcast returns the address of all hosts of a network (RFC 919). It is not valid if there is
// none, as in IPv6 and in networks of one or two hosts (RFC 3021).
func Broadcast(network netip.Prefix) netip.Addr {
	addr, bits := network.Addr().Unmap(), network.Bits()
	if network.Addr().Is4In6() {
		bits -= 96
	}
	if !addr.Is4() || bits < 0 || bits > 30 {
		return netip.Addr{}
	}
	b := addr.As4()
	for i := bits; i < 32; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(b)
}
