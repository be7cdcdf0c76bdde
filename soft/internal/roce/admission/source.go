package admission

import (
	"cmp"
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

// Source is the source that the packets of one queue pair may come from. The zero value admits
// none.
//
// A peer chooses the source port for the packets of a queue pair, and keeps it (annex
// A17.4.5). If the port was not named, a reliable connection learns it from the first
// plausible packet.
type Source struct {
	// LastPacketAt is when Learn last accepted a packet of the peer.
	LastPacketAt time.Duration

	kind             sourceKind
	entry            *Entry         // that packets arrive at; for datagrams, the last one
	peer             netip.Addr     // for connections
	addr             netip.AddrPort // of the last packet that was admitted
	to               uint16         // the port that it was sent to; 0: the entry's
	flow             wire.Flow      // the flow from addr
	notificationFlow wire.Flow      // of the last congestion notification
	control          *Control       // for datagrams
	qpn              uint32         // for datagrams
	// connection tells which packets are plausible.
	connection Plausible
	// repetitions is how many packets back a repetition is plausible, too.
	repetitions int32
}

// Plausible tells from which packets a reliable connection can learn a port.
type Plausible interface {
	// Plausible reports whether a packet is one that the queue pair waits for, or repeats one
	// of its last packets, up to repetitions back.
	Plausible(p *wire.Packet, repetitions int32) bool
}

// sourceKind is what is known about the source.
type sourceKind uint8

const (
	sourceNone   sourceKind = iota
	sourceAny               // datagrams
	portAny                 // any port of the peer's address
	portLearning            // any port of the peer's address, until a packet is plausible
	portLearned             // the source port of a plausible packet
	portNamed               // the port that the program or the connection manager has named
)

// RelearnTime is how long a peer must be silent before packets from another port may be its
// own: a driver may choose another port when it restarts a queue pair.
const RelearnTime = 10 * time.Second

// Connection returns the source of a connection whose packets come from that address to the
// entry. Port 0: the port was not named. It is then learned from packets that connection finds
// plausible. If connection is nil, any port is accepted, as for unreliable connections, whose
// peer may be at any sequence number.
func (e *Entry) Connection(peer netip.Addr, port uint16, connection Plausible) Source {
	s := Source{kind: portAny, entry: e, peer: peer, connection: connection}
	switch {
	case port != 0:
		s.kind = portNamed
		s.setAddr(netip.AddrPortFrom(peer, port), 0)
	case connection != nil:
		s.kind = portLearning
	}
	return s
}

// Datagrams returns the source of a queue pair for datagrams, which accepts packets from any
// source.
func (c *Control) Datagrams(qpn uint32) Source { return Source{kind: sourceAny, control: c, qpn: qpn} }

func (s *Source) setAddr(addr netip.AddrPort, to uint16) {
	s.addr, s.to, s.flow = addr, to, s.entry.flow(addr, to)
}

// flow returns the flow of the packets from an address to a port of the entry; 0: its own.
func (e *Entry) flow(from netip.AddrPort, to uint16) wire.Flow {
	return wire.NewFlow(from, netip.AddrPortFrom(e.addr.Addr(), cmp.Or(to, e.addr.Port())))
}

func (s *Source) connected() bool { return s.kind >= portAny }

// Named reports whether the port was named.
func (s *Source) Named() bool { return s.kind == portNamed }

// LikeOurs reports whether the peer is, by its port, a device like this one. Other devices that
// choose their ports at random have such a port for a quarter of their connections.
func (s *Source) LikeOurs() bool {
	return s.kind == portNamed || s.kind == portLearned && s.addr.Port() >= FirstSendPort
}

// AcceptRepetitions allows a port to be learned from a repetition of one of the last n
// packets, too: a peer whose packets arrived by another path repeats those that were not
// acknowledged there.
func (s *Source) AcceptRepetitions(n int32) { s.repetitions = n }

// Admit decides on a packet before its checksum is computed. It was sent to a port of the entry; 0: its
// own. Admit returns the flow of the packet, for the checksum, or nil and the reason to drop it.
func (s *Source) Admit(e *Entry, to uint16, from netip.AddrPort, p *wire.Packet, now time.Duration) (*wire.Flow, Verdict) {
	if !DefaultPartition(p.PKey) {
		return nil, WrongPeer
	}
	switch {
	case s.kind == sourceAny:
		if e != s.entry || from != s.addr || to != s.to {
			s.entry = e
			s.setAddr(from, to)
		}
		return &s.flow, Admitted
	case s.kind == sourceNone || e != s.entry:
		return nil, WrongPeer
	case s.notification(p) && from.Addr() == s.peer:
		// Adapters send these from any port, and no port is learned from them.
		s.notificationFlow = e.flow(from, to)
		return &s.notificationFlow, Admitted
	case from == s.addr && to == s.to:
		return &s.flow, Admitted
	case from == s.addr: // as a peer that knows both ports
	case from.Addr() != s.peer:
		return nil, WrongPeer
	case s.kind == portLearned && now-s.LastPacketAt >= RelearnTime:
		s.kind = portLearning
	case s.kind >= portLearned:
		return nil, WrongSource
	}
	s.setAddr(from, to)
	return &s.flow, Admitted
}

// notification reports whether a packet is a congestion notification that may come from any
// port: the peer's port was not named.
func (s *Source) notification(p *wire.Packet) bool {
	return p.Opcode == wire.CNP && s.connected() && s.kind != portNamed
}

// Learn decides on a packet that was admitted and whose checksum is correct, and learns from
// it.
func (s *Source) Learn(from netip.AddrPort, p *wire.Packet, now time.Duration) Verdict {
	switch s.kind {
	case sourceAny:
		if !s.control.Senders.Admit(from, p.DETH.SrcQP) {
			return WrongSource
		}
	case portNamed:
	default:
		if s.notification(p) {
			return Admitted
		}
		if s.kind != portLearning {
			break
		}
		if !s.connection.Plausible(p, s.repetitions) {
			return WrongSource
		}
		s.kind = portLearned
	}
	s.LastPacketAt = now
	return Admitted
}

// Open makes the filters of the entries pass the packets of the source, until Close.
func (s *Source) Open() {
	switch {
	case s.connected():
		s.entry.allow(s.filterAddr())
	case s.kind == sourceAny:
		for _, e := range s.control.entries {
			e.openQP(s.qpn)
		}
	}
}

// Close undoes Open.
func (s *Source) Close() {
	switch {
	case s.connected():
		s.entry.disallow(s.filterAddr())
	case s.kind == sourceAny:
		for _, e := range s.control.entries {
			e.closeQP(s.qpn)
		}
	}
}

// filterAddr returns the address that the filters pass while the source is open: with the named
// port, or with any port if none was named, since a learned port can be replaced.
func (s *Source) filterAddr() netip.AddrPort {
	if s.kind == portNamed {
		return s.addr
	}
	return netip.AddrPortFrom(s.peer, 0)
}
