package hostaddr

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
)

// Own is an address of a network interface of this host that is up.
type Own struct {
	Addr      netip.Addr // never IPv4-mapped; link-local ones of IPv6 have the interface's name as zone
	Interface string
	Index     int  // of the interface
	Loopback  bool // the interface is a loopback one
}

// List returns the addresses of the interfaces that are up, in the order of the system. The errors are
// the system's.
func List() (list []Own, err error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	for _, i := range interfaces {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			return nil, fmt.Errorf("list the addresses of interface %s: %w", i.Name, err)
		}
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err != nil {
				continue // it is none of IP
			}
			own := Own{p.Addr().Unmap(), i.Name, i.Index, i.Flags&net.FlagLoopback != 0}
			if own.Addr.Is6() && own.Addr.IsLinkLocalUnicast() {
				own.Addr = own.Addr.WithZone(i.Name)
			}
			list = append(list, own)
		}
	}
	return list, nil
}

// InterfaceOf returns the name of the interface that has an address, or nothing if none has. Loopback
// addresses, of which 127.0.0.0/8 are many, belong to the loopback interface. If several interfaces have
// a link-local address, its zone, the name or the index of one, decides.
func InterfaceOf(addr netip.Addr) string {
	list, err := List()
	if err != nil {
		return ""
	}
	addr = addr.Unmap()
	for _, own := range list {
		if zone := addr.Zone(); zone != "" && zone != own.Interface && zone != strconv.Itoa(own.Index) {
			continue
		}
		if own.Addr.WithZone("") == addr.WithZone("") || addr.IsLoopback() && own.Loopback {
			return own.Interface
		}
	}
	return ""
}
