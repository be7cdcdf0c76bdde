package cm

import (
	"fmt"
	"net/netip"

	"github.com/verbena-rdma/verbena/internal/hostaddr"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// QKey is the Q_Key of queue pair 1, in every MAD (IBTA 10.2.5).
const QKey = 0x80010000

// QKeyUDP is the Q_Key that RDMA CM assigns to queue pairs of the port space UDP.
const QKeyUDP = 0x01234567

// Path is the path of a MAD between an endpoint of the device and a peer.
type Path struct {
	// Local is the endpoint: its address, and the UDP port of its socket.
	Local netip.AddrPort
	// Remote is the peer's address. Its port is the UDP source port of a received MAD, or the
	// UDP destination port of a MAD to send.
	Remote netip.AddrPort
	// GIDIndex is the endpoint's index in the GID table. The manager only passes it on.
	GIDIndex int
	// SourcePort is the UDP port that all packets of the endpoint leave from; 0: the peer is
	// not told.
	SourcePort uint16
}

// usable reports whether MADs can take the path.
func (p *Path) usable() bool {
	l, r := p.Local.Addr(), p.Remote.Addr()
	return l.IsValid() && !l.IsUnspecified() && hostaddr.Unusable(r) == "" &&
		l.Unmap().Is4() == r.Unmap().Is4() && p.Local.Port() != 0 && p.Remote.Port() != 0
}

// Addresses are compared as GIDs: IPv4 addresses have one form there, and zones are left out.
func (p *Path) localGID() verbs.GID  { return verbs.GIDFromAddr(p.Local.Addr()) }
func (p *Path) remoteGID() verbs.GID { return verbs.GIDFromAddr(p.Remote.Addr()) }

// to returns the path with another port of the peer.
func (p Path) to(port uint16) Path {
	p.Remote = netip.AddrPortFrom(p.Remote.Addr(), port)
	return p
}

// PortSpace is the port space of a port number (annex A11).
type PortSpace uint16

// The port spaces of RDMA CM.
const (
	PortSpaceTCP PortSpace = 0x0106 // reliable connections
	PortSpaceUDP PortSpace = 0x0111 // datagrams
)

// Service identifies what a listener offers and a dialler connects to.
type Service struct {
	Space PortSpace
	Port  uint16
}

// ID returns the service ID of REQ and SIDR_REQ.
func (s Service) ID() uint64 { return uint64(s.Space)<<16 | uint64(s.Port) }

// String returns the service for error messages.
func (s Service) String() string {
	switch s.Space {
	case PortSpaceTCP:
		return fmt.Sprintf("port %d", s.Port)
	case PortSpaceUDP:
		return fmt.Sprintf("datagram port %d", s.Port)
	}
	return fmt.Sprintf("port %d of port space %#04x", s.Port, uint16(s.Space))
}

// portMark is in the upper 16 bits of the transaction IDs of a process whose UDP port is not
// 4791. The next 16 bits are the port (see the package comment).
const portMark = 0x5642

// newTransactionID returns a transaction ID for a request that leaves by a UDP port.
func (m *Manager) newTransactionID(port uint16) uint64 {
	id := m.config.Random()
	if port != wire.UDPPort {
		id = portMark<<48 | uint64(port)<<32 | id&0xffffffff
	}
	return id
}

// responsePath returns the path of the response to a request.
func responsePath(transactionID uint64, from Path) Path {
	if port := from.Remote.Port(); transactionID>>48 == portMark && uint16(transactionID>>32) == port {
		return from
	}
	return from.to(wire.UDPPort)
}

// sourceMark is in the upper 16 bits of the Q_Key of a REQ or REP, which connections do not
// use. The lower 16 bits are the UDP source port of the connection's packets.
const sourceMark = 0x5653

// sourceKey returns the Q_Key that names the source port of a connection's packets.
func (p *Path) sourceKey() uint32 {
	if p.SourcePort == 0 {
		return 0
	}
	return sourceMark<<16 | uint32(p.SourcePort)
}

// sourcePort returns the source port of a connection's packets that the sender of a REQ or REP
// names; 0: it names none. The port counts only if the message itself came from it.
func sourcePort(qKey uint32, from *Path) uint16 {
	if port := from.Remote.Port(); qKey == sourceMark<<16|uint32(port) {
		return port
	}
	return 0
}
