// Package listening has the addresses at which the servers of the tool are reached.
package listening

import (
	"net/netip"
	"slices"

	"github.com/verbena-rdma/verbena/internal/hostaddr"
	"github.com/verbena-rdma/verbena/verbs"
)

// At returns the addresses at which peers reach what listens on a port of a device at an address: if
// that is unspecified, all of the device. Programs of this machine find a software device of the loopback
// interface at 127.0.0.1.
func At(dev verbs.Device, addr netip.AddrPort) (list []netip.AddrPort) {
	if !addr.Addr().IsUnspecified() {
		return []netip.AddrPort{dialled(addr.Addr(), addr.Port())}
	}
	attr, err := dev.Query()
	for port := 1; err == nil && port <= attr.Ports; port++ {
		table, _ := dev.GIDs(port)
		for _, e := range table {
			a := e.GID.Addr()
			if a.IsLinkLocalUnicast() && a.Is6() {
				a = a.WithZone(e.Interface)
			}
			if at := dialled(a, addr.Port()); e.Type == verbs.GIDRoCEv2 && !slices.Contains(list, at) {
				list = append(list, at)
			}
		}
	}
	if len(list) == 0 { // it has only GIDs that are no addresses
		list = append(list, addr)
	}
	return list
}

// AtHost is At for a listener of TCP.
func AtHost(addr netip.AddrPort) (list []netip.AddrPort) {
	own, err := hostaddr.List()
	if err != nil || !addr.Addr().IsUnspecified() {
		return []netip.AddrPort{addr}
	}
	for _, o := range own {
		list = append(list, netip.AddrPortFrom(o.Addr, addr.Port()))
	}
	return list
}

func dialled(a netip.Addr, port uint16) netip.AddrPort {
	if a.Is4() && a.IsLoopback() {
		a = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.AddrPortFrom(a, port)
}
