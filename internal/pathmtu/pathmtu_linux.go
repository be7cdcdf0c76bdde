// Package pathmtu asks the system for the path MTU to another host: the MTU of the interface,
// or less if a router on the path has reported a smaller one.
package pathmtu

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// Of returns the length of the largest IP packet from one address to another that the system
// knows to fit. ok is false if the system does not know.
func Of(from, to netip.Addr) (bytes int, ok bool) {
	from, to = from.Unmap(), to.Unmap()
	family, level, name := unix.AF_INET, unix.IPPROTO_IP, unix.IP_MTU
	if to.Is6() {
		family, level, name = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_MTU
	}
	if from.Is4() != to.Is4() || to.IsLinkLocalUnicast() && to.Is6() { // a link-local address needs a zone
		return 0, false
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	if unix.Bind(fd, address(from, 0)) != nil || unix.Connect(fd, address(to, discard)) != nil {
		return 0, false
	}
	bytes, err = unix.GetsockoptInt(fd, level, name)
	return bytes, err == nil && bytes > 0
}

// discard is the port to connect to. Nothing is sent.
const discard = 9

func address(addr netip.Addr, port int) unix.Sockaddr {
	if addr.Is4() {
		return &unix.SockaddrInet4{Addr: addr.As4(), Port: port}
	}
	return &unix.SockaddrInet6{Addr: addr.As16(), Port: port}
}
