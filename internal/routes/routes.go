// Package routes asks the system for the routes of packets.
package routes

import (
	"net"
	"net/netip"
)

// Source returns the source address, without zone, that the system uses for packets to a peer.
// It is not valid if there is no route. Source sends nothing.
func Source(peer netip.Addr) netip.Addr {
	source, _ := Find(peer)
	return source
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
