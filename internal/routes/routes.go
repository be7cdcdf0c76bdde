// Package routes asks the system which way packets take.
package routes

import (
	"net"
	"net/netip"
)

// Source returns the address, without zone, that the system sends from to a peer. It is
// not valid if there is no route. Nothing is sent.
func Source(peer netip.Addr) netip.Addr {
	const rocePort = 4791 // routes may depend on it
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(peer, rocePort)))
	if err != nil {
		return netip.Addr{}
	}
	defer func() { _ = conn.Close() }()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone("")
}
