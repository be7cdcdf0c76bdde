package admission

import (
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

// Source is where the packets of one queue pair may come from. The zero value admits none.
//
// A peer chooses the port for the packets of a queue pair, and keeps it (annex A17.4.5). Where
// nobody has named it, a reliable connection learns it from the first packet that can be right.
type Source struct {
	// HeardAt is when the last packet came.
	HeardAt time.Duration

	from    origin
	entry   *Entry         // that packets come to; of datagrams, that the last one came to
	peer    netip.Addr     // of a connection
	addr    netip.AddrPort // of the last packet that was admitted
	flow    wire.Flow      // from there
	notices wire.Flow      // of the last congestion notification
	control *Control       // of datagrams
	qpn     uint32         // of datagrams
	// connection says which packets can be right.
	connection Plausible
	// repetitions is how many packets back a repetition can be right, too.
	repetitions int32
}

// Plausible says which packets a reliable connection can learn a port from.
type Plausible interface {
	// Plausible reports whether a packet is one that the queue pair waits for, or repeats one
	// of the last packets, at most so many.
	Plausible(p *wire.Packet, repetitions int32) bool
}

// origin is what is known of the source.
type origin uint8

const (
	nowhere  origin = iota
	anywhere        // datagrams
	anyPort         // of the peer's address
	learning        // any port of it, until a packet can be right
	learned         // the port that a packet came from that can be right
	named           // the port that the program or the connection manager has named
)

// RelearnTime is how long a peer is silent before packets from another port may be its own: a
// driver can choose another for a queue pair that it brings up again.
const RelearnTime = 10 * time.Second

// Connection is the source of a connection whose packets come to the entry from that address. Port
// 0: nobody has named the port. Then connection, unless it is nil, is asked which packet tells it.
// An unreliable connection has none, since its peer may be at any sequence number.
func (e *Entry) Connection(peer netip.Addr, port uint16, connection Plausible) Source {
	s := Source{from: anyPort, entry: e, peer: peer, connection: connection}
	switch {
	case port != 0:
		s.from = named
		s.setAddr(netip.AddrPortFrom(peer, port))
	case connection != nil:
		s.from = learning
	}
	return s
}

// Datagrams is the source of a queue pair for datagrams, which takes packets from anywhere.
func (c *Control) Datagrams(qpn uint32) Source { return Source{from: anywhere, control: c, qpn: qpn} }

func (s *Source) setAddr(addr netip.AddrPort) {
	s.addr, s.flow = addr, wire.NewFlow(addr, s.entry.addr)
}

func (s *Source) connected() bool { return s.from >= anyPort }

// Named reports whether the port was named.
func (s *Source) Named() bool { return s.from == named }

// AcceptRepetitions has a port learned from a repetition of one of the last n packets, too: a peer
// whose packets came by another way repeats what was not acknowledged there.
func (s *Source) AcceptRepetitions(n int32) { s.repetitions = n }

// Admit decides on a packet before its checksum is computed. It returns the flow of the packet,
// for the checksum, or nil and the reason why it is dropped.
func (s *Source) Admit(e *Entry, from netip.AddrPort, p *wire.Packet, now time.Duration) (*wire.Flow, Verdict) {
	if !DefaultPartition(p.PKey) {
		return nil, WrongPeer
	}
	switch {
	case s.from == anywhere:
		if e != s.entry || from != s.addr {
			s.entry = e
			s.setAddr(from)
		}
		return &s.flow, Admitted
	case s.from == nowhere || e != s.entry:
		return nil, WrongPeer
	case s.notification(p) && from.Addr() == s.peer:
		// Adapters send these from any port, and nothing is learned from them.
		s.notices = wire.NewFlow(from, e.addr)
		return &s.notices, Admitted
	case from == s.addr:
		return &s.flow, Admitted
	case from.Addr() != s.peer:
		return nil, WrongPeer
	case s.from == learned && now-s.HeardAt >= RelearnTime:
		s.from = learning
	case s.from >= learned:
		return nil, WrongSource
	}
	s.setAddr(from)
	return &s.flow, Admitted
}

// notification reports whether a packet is a congestion notification that may come from any port:
// nobody has named the peer's.
func (s *Source) notification(p *wire.Packet) bool {
	return p.Opcode == wire.CNP && s.connected() && s.from != named
}

// Learn decides on a packet that was admitted and whose checksum is right, and learns from it.
func (s *Source) Learn(from netip.AddrPort, p *wire.Packet, now time.Duration) Verdict {
	switch s.from {
	case anywhere:
		if !s.control.Senders.Admit(from, p.DETH.SrcQP) {
			return WrongSource
		}
	case named:
	default:
		if s.notification(p) {
			return Admitted
		}
		if s.from != learning {
			break
		}
		if !s.connection.Plausible(p, s.repetitions) {
			return WrongSource
		}
		s.from = learned
	}
	s.HeardAt = now
	return Admitted
}

// Open lets the packets of the source pass the filters of the entries, until Close.
func (s *Source) Open() {
	switch {
	case s.connected():
		s.entry.allow(s.allowed())
	case s.from == anywhere:
		for _, e := range s.control.entries {
			e.openQP(s.qpn)
		}
	}
}

// Close ends Open.
func (s *Source) Close() {
	switch {
	case s.connected():
		s.entry.disallow(s.allowed())
	case s.from == anywhere:
		for _, e := range s.control.entries {
			e.closeQP(s.qpn)
		}
	}
}

// allowed is where packets may come from while the source is open: one port, or any of the address
// where nobody has named it, since a port that was learned can be learned again.
func (s *Source) allowed() netip.AddrPort {
	if s.from == named {
		return s.addr
	}
	return netip.AddrPortFrom(s.peer, 0)
}
