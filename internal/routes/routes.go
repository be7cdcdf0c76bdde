// Package routes asks the system for the routes of packets.
package routes

import (
	"net"
	"net/netip"

	"github.com/verbena-rdma/verbena/internal/hostaddr"
)

// Source returns the source address, without zone, that the system uses for packets to a peer.
// It is not valid if there is no route. Source sends nothing.
func Source(peer netip.Addr) netip.Addr {
	source, _ := Find(peer)
	return source
}

// Local reports whether packets to an address stay on this host.
func Local(addr netip.Addr) bool {
	if addr.IsLoopback() || Source(addr) == addr.WithZone("") {
		return true
	}
	// The source of packets to a further address of an interface is its first one. Binding is quick, and
	// possible at such an address; the system can allow it at others too (ip(7), ip_nonlocal_bind).
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
	if err != nil {
		return false
	}
	_ = conn.Close()
	return hostaddr.InterfaceOf(addr) != ""
}

// Find is Source, with the system's error.
func Find(peer netip.Addr) (source netip.Addr, err error) {
	const rocePort = 4791 // routes may depend on the port
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(peer, rocePort)))
	if err != nil {
		return netip.Addr{}, err
	}
	defer func() { _ = conn.Close() }()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone(""), nil
}
