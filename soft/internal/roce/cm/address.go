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

// QKeyUDP is the Q_Key that RDMA CM gives to queue pairs of the port space UDP.
const QKeyUDP = 0x01234567

// Path is the way of a MAD between an endpoint of the device and a peer.
type Path struct {
	// Local is the endpoint: its address, and the UDP port of its socket.
	Local netip.AddrPort
	// Remote is the peer's address. Its port is, of a MAD that has come, the UDP port
	// it came from; of one to be sent, the one to send it to.
	Remote netip.AddrPort
	// GIDIndex is the endpoint's place in the GID table. The manager only hands it on.
	GIDIndex int
	// SourcePort is the UDP port that all packets of the endpoint leave from; 0: the peer is
	// not told.
	SourcePort uint16
}

// usable reports whether MADs can go that way.
func (p *Path) usable() bool {
	l, r := p.Local.Addr(), p.Remote.Addr()
	return l.IsValid() && !l.IsUnspecified() && hostaddr.Misfit(r) == "" &&
		l.Unmap().Is4() == r.Unmap().Is4() && p.Local.Port() != 0 && p.Remote.Port() != 0
}

// GIDs are what addresses are compared by: IPv4 in one form, without zones.
func (p *Path) localGID() verbs.GID  { return verbs.GIDFromAddr(p.Local.Addr()) }
func (p *Path) remoteGID() verbs.GID { return verbs.GIDFromAddr(p.Remote.Addr()) }

// to is the path with another port of the peer.
func (p Path) to(port uint16) Path {
	p.Remote = netip.AddrPortFrom(p.Remote.Addr(), port)
	return p
}

// PortSpace is what a port number belongs to (annex A11).
type PortSpace uint16

// The port spaces of RDMA CM.
const (
	PortSpaceTCP PortSpace = 0x0106 // reliable connections
	PortSpaceUDP PortSpace = 0x0111 // datagrams
	PortSpaceIB  PortSpace = 0x013f // any transport
)

// Service is what is listened for and connected to.
type Service struct {
	Space PortSpace
	Port  uint16
}

// ID is the service ID of REQ and SIDR_REQ.
func (s Service) ID() uint64 { return uint64(s.Space)<<16 | uint64(s.Port) }

// String is for messages.
func (s Service) String() string {
	switch s.Space {
	case PortSpaceTCP:
		return fmt.Sprintf("port %d", s.Port)
	case PortSpaceUDP:
		return fmt.Sprintf("datagram port %d", s.Port)
	}
	return fmt.Sprintf("port %d of port space %#04x", s.Port, uint16(s.Space))
}

// serviceOf is the service of an ID; false: it is none of RDMA CM.
func serviceOf(id uint64) (Service, bool) {
	return Service{PortSpace(id >> 16), uint16(id)}, id>>32 == 0
}

// portMark is in the upper 16 bits of the transaction IDs of a process whose UDP
// port is not 4791; the port is in the next 16 (see the package's comment).
const portMark = 0x5642

// newTransactionID makes the transaction ID of a request that leaves by a UDP port.
func (m *Manager) newTransactionID(port uint16) uint64 {
	id := m.config.Random()
	if port != wire.UDPPort {
		id = portMark<<48 | uint64(port)<<32 | id&0xffffffff
	}
	return id
}

// answerPath is the way of the answer to a request.
func answerPath(transactionID uint64, from Path) Path {
	if port := from.Remote.Port(); transactionID>>48 == portMark && uint16(transactionID>>32) == port {
		return from
	}
	return from.to(wire.UDPPort)
}

// sourceMark is in the upper 16 bits of the Q_Key of a REQ or REP, which connections make no
// use of; the UDP port that packets of the connection come from is in the lower ones.
const sourceMark = 0x5653

// sourceKey says which port packets of a connection leave from.
func (p *Path) sourceKey() uint32 {
	if p.SourcePort == 0 {
		return 0
	}
	return sourceMark<<16 | uint32(p.SourcePort)
}

// sourcePort is the port that the sender of a REQ or REP says that the packets of the connection
// come from; 0: it says nothing. It counts only if the message itself has come from there.
func sourcePort(qKey uint32, from *Path) uint16 {
	if port := from.Remote.Port(); qKey == sourceMark<<16|uint32(port) {
		return port
	}
	return 0
}
