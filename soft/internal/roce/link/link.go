package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"
)

// Errors of this package, matched with [errors.Is]. A closed socket gives
// [net.ErrClosed]; errors of the system keep their number, for instance
// [syscall.EADDRINUSE].
var (
	// ErrAddress: an address is missing, or of the wrong family.
	ErrAddress = errors.New("unusable address")
	// ErrPacket: the size of a packet is out of range.
	ErrPacket = errors.New("malformed packet")
	// ErrSegmentation: the kernel refused segmentation offload for a route, and
	// the socket does without from now on.
	ErrSegmentation = errors.New("segmentation offload refused")
	// ErrSendPort: no port of Config.SendPorts is free.
	ErrSendPort = errors.New("no port to send from is free")
)

const (
	// MaxPacket is the largest packet, in bytes of UDP payload, and the largest
	// train. It leaves room for the IP and UDP headers in a 16-bit length.
	MaxPacket = 65000

	defaultBuffer = 4 << 20
	maxSegments   = 64 // the UDP_MAX_SEGMENTS of Linux up to 6.8; later kernels take more
	sendPatience  = time.Millisecond
)

// Config says how to open a [Socket].
type Config struct {
	// Addr is the local address. Port 0 takes any free port. A zone is used as
	// Interface when that is empty.
	Addr netip.AddrPort
	// Interface names the network interface of IPv6 link-local addresses, local
	// and remote, and of multicast groups. Other addresses do without. Empty: groups
	// are on the interface that has Addr.
	Interface string

	// SendPorts has packets leave from a port of their own, a free one of these. What comes to
	// that port is dropped. The zero value: they leave from Addr's port.
	SendPorts PortRange
	// Exclusive binds Addr's port at all addresses of the host. Packets have Addr as their
	// source, and those to another address come in too.
	Exclusive bool

	// DisableSegmentation sends every packet by itself.
	DisableSegmentation bool
	// DisableCoalescing receives every packet by itself.
	DisableCoalescing bool
	// DisableBatch uses one system call per train sent or received.
	DisableBatch bool
	// Portable uses nothing but the standard library's UDP socket, as on systems
	// other than Linux.
	Portable bool

	// SendBuffer and ReceiveBuffer are the kernel's buffer sizes to ask for, in
	// bytes. Zero asks for 4 MiB. The kernel may grant less.
	SendBuffer    int
	ReceiveBuffer int

	share backend // that has the address already; nil: none
}

// PortRange is the ports from First to Last.
type PortRange struct{ First, Last uint16 }

// Features lists what a [Socket] uses.
type Features struct {
	Segmentation bool // trains are cut into packets by the kernel or the adapter
	Coalescing   bool // packets of a train arrive together
	BatchReceive bool // several messages are taken per system call
	Groups       bool // multicast groups can be joined
	MaxSegments  int  // packets in a train; 1 without segmentation
	// ReceiveBuffer is what the kernel granted, in bytes, in its own accounting
	// (see SO_RCVBUF in socket(7)); 0 where that is not known.
	ReceiveBuffer int
}

// Datagram is one packet received.
type Datagram struct {
	Src  netip.AddrPort // without zone; never an IPv4-mapped IPv6 address
	Data []byte
	// Group is the multicast group that the packet was sent to; not valid: it was sent to
	// the socket's address.
	Group netip.Addr
	// Segment is the index of the packet in the train that it arrived in, 0 when
	// it arrived alone. It is the IPv4 identification only if the sender's train
	// stayed whole on its way.
	Segment int
	// Header is what the packet came with, while [Socket.ReceiveHeaders] is on.
	Header Header
}

// Socket is a UDP socket for RoCEv2 packets. Open one with [Listen].
type Socket struct {
	io     backend
	addr   netip.AddrPort
	source netip.AddrPort
	batch  batch
}

// backend is the part that differs between systems.
type backend interface {
	// send sends all messages of b and counts in b what was dropped, and why.
	send(b *batch)
	receive() ([]Datagram, error)
	receiveHeaders(on bool) error
	join(group netip.AddrPort) error
	routed(to netip.AddrPort) error
	leave(group netip.AddrPort) error
	unreachable() []netip.AddrPort
	setFilter(f *Filter) error
	dropped() uint64
	features() Features
	sendPort() uint16
	wait(deadline time.Time) error
	interrupt()
	setDeadline(t time.Time)
	// share opens another socket at the same address.
	share() (backend, error)
	// steer chooses among those that share an address.
	steer(sockets, mask int) error
	close() error
}

// Listen opens a socket on cfg.Addr. The error names the address, and matches
// [ErrAddress] for one that cannot be used, [syscall.EADDRINUSE] for one that
// another socket has, [ErrSendPort] where all of cfg.SendPorts are taken.
func Listen(cfg Config) (*Socket, error) {
	addr := netip.AddrPortFrom(cfg.Addr.Addr().Unmap(), cfg.Addr.Port())
	if !addr.IsValid() {
		return nil, fmt.Errorf("link: listen: no local address given: %w", ErrAddress)
	}
	if cfg.Interface == "" {
		cfg.Interface = addr.Addr().Zone()
	}
	cfg.Addr = netip.AddrPortFrom(addr.Addr().WithZone(""), addr.Port())
	if cfg.SendBuffer <= 0 {
		cfg.SendBuffer = defaultBuffer
	}
	if cfg.ReceiveBuffer <= 0 {
		cfg.ReceiveBuffer = defaultBuffer
	}
	zone := 0
	if cfg.Interface != "" {
		ifi, err := net.InterfaceByName(cfg.Interface)
		if err != nil {
			return nil, fmt.Errorf("link: listen on UDP %s: interface %q: %w", cfg.Addr, cfg.Interface, err)
		}
		zone = ifi.Index
	} else if addr.Addr().IsLinkLocalUnicast() && addr.Addr().Is6() {
		return nil, fmt.Errorf("link: listen on UDP %s: a link-local address needs an interface; name it in Config.Interface: %w", cfg.Addr, ErrAddress)
	}
	io, bound, err := open(cfg, zone)
	if err != nil {
		return nil, fmt.Errorf("link: listen on UDP %s: %s%w", cfg.Addr, hint(err, cfg.Exclusive), err)
	}
	return newSocket(io, bound), nil
}

func newSocket(io backend, addr netip.AddrPort) *Socket {
	s := &Socket{io: io, addr: addr, source: netip.AddrPortFrom(addr.Addr(), io.sendPort())}
	s.batch.init(addr.Addr().Is4(), io.features().MaxSegments)
	return s
}

// Share opens another socket at the same address, in another goroutine's hands: packets come to
// one of them, by what Steer says, and leave from the same port. Programs of other users can
// still not take the address, and those of its own only with SO_REUSEPORT. The error matches [errors.ErrUnsupported] where
// the system cannot do it.
func (s *Socket) Share() (*Socket, error) {
	io, err := s.io.share()
	if err != nil {
		return nil, fmt.Errorf("link: another socket at UDP %s: %w", s.addr, err)
	}
	return newSocket(io, s.addr), nil
}

// Steer has packets come to the socket whose place among those that share the address, in the
// order in which they were opened, is the number of their destination queue pair and mask; to
// the first if there is none, and if the queue pair is number 0 or 1 (IBTA 3.5.10). The first
// packet of a train decides for all.
func (s *Socket) Steer(sockets, mask int) error {
	if err := s.io.steer(sockets, mask); err != nil {
		return fmt.Errorf("link: steer packets among %d sockets at UDP %s: %w", sockets, s.addr, err)
	}
	return nil
}

// hint explains the failures that users meet.
func hint(err error, exclusive bool) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE) && exclusive:
		return "the address is in use by another socket, or its port at another address of this host; choose another port: "
	case errors.Is(err, syscall.EADDRINUSE):
		return "the address is in use by another socket; choose another address or port: "
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "no interface of this host has the address: "
	}
	return ""
}

func errNoSendPort(r PortRange) error {
	return fmt.Errorf("%w: this host uses all of %d to %d; close devices or other programs that have them", ErrSendPort, r.First, r.Last)
}

// Addr returns the local address, with the port that was taken and without zone.
func (s *Socket) Addr() netip.AddrPort { return s.addr }

// Source is where packets come from for those who get them: the local address, and the port
// that they leave from.
//
// On Linux, that port is bound at all addresses of the host and shared with nobody, where
// [Config] has SendPorts or Exclusive. So no program without privileges can send as from there,
// as one can from a port that is bound at a single address: it binds the port at another one,
// and names the source of each packet by itself (IP_PKTINFO in ip(7)).
func (s *Socket) Source() netip.AddrPort { return s.source }

// Features returns what is in use now. Segmentation goes from true to false if
// the kernel refuses it while sending.
func (s *Socket) Features() Features { return s.io.features() }

// Receive takes what is queued, up to a batch, and never blocks. It returns
// nothing when nothing is there. The slice and the data in it are valid until
// the next Receive. It allocates nothing.
func (s *Socket) Receive() ([]Datagram, error) { return s.io.receive() }

// ReceiveHeaders has Receive fill in the field Header of packets that it takes from now
// on, or no longer. A portable socket cannot, and its error matches
// [errors.ErrUnsupported].
func (s *Socket) ReceiveHeaders(on bool) error { return s.io.receiveHeaders(on) }

// Join has Receive take packets to a multicast group and port too, from the network
// interface that has the socket's address. Other sockets of the machine may have joined it
// as well; each gets a copy, and so does this one of what it sends. Joining again does
// nothing. Join and Leave are called by the receiving goroutine. Errors match
// [ErrAddress], [syscall.EADDRINUSE] where a program has the port and does not share it, and
// [errors.ErrUnsupported] on a portable socket.
func (s *Socket) Join(group netip.AddrPort) error {
	group = netip.AddrPortFrom(group.Addr().Unmap().WithZone(""), group.Port())
	if !group.Addr().IsMulticast() || group.Addr().Is4() != s.addr.Addr().Is4() {
		return fmt.Errorf("link: join %s: it is no %s multicast group: %w", group, family(s.addr.Addr().Is4()), ErrAddress)
	}
	if err := s.io.join(group); err != nil {
		return fmt.Errorf("link: join %s at %s: %w", group, s.addr, err)
	}
	return nil
}

// Routed returns an error if the system has no route for packets of this socket to an
// address, for instance [syscall.ENETUNREACH]. Nothing is sent. Any goroutine may call it.
func (s *Socket) Routed(to netip.AddrPort) error {
	if err := s.io.routed(to); err != nil {
		return fmt.Errorf("link: find the route from %s to %s: %w", s.addr, to, err)
	}
	return nil
}

// Leave ends Join. What has been received is dropped.
func (s *Socket) Leave(group netip.AddrPort) error {
	if err := s.io.leave(netip.AddrPortFrom(group.Addr().Unmap().WithZone(""), group.Port())); err != nil {
		return fmt.Errorf("link: leave %s at %s: %w", group, s.addr, err)
	}
	return nil
}

// Unreachable returns the addresses of peers that the network has reported as
// having nobody listen at their port, as ICMP does, since it was called last; at
// most 64. It is called by the receiving
// goroutine; the slice is valid until the next call. It makes no system call:
// reports come in with Receive, Flush and Wait, which returns for them. Where the
// system does not pass them on, there are none. Anybody on the way can forge one.
func (s *Socket) Unreachable() []netip.AddrPort { return s.io.unreachable() }

// How many of each a [Filter] has at most. The system limits the length of its program: all of
// them together have room where net.core.optmem_max is 20480, as it was up to Linux 6.8.
const (
	MaxIgnored  = 16
	MaxOpen     = 16
	MaxAdmitted = 128
)

// Filter says which packets the system drops before they come to a socket: such packets wake
// nobody, take no room in the socket's buffer, and are dropped on the account of who sends them,
// where that is a program of the same machine. Addresses are of the socket's family, and without
// zone. The zero value drops none.
type Filter struct {
	// Ignored are hosts whose packets for queue pair IgnoredQPN are dropped: those with these
	// addresses or, with IPv6, with the same upper 64 bits.
	Ignored    []netip.Addr
	IgnoredQPN uint32

	// Restrict has all packets dropped but those for Open queue pairs, those of OpenService (the
	// upper three bits of the opcode; zero: of none), and those from Admitted. Port 0 stands for
	// all ports of the address.
	Restrict    bool
	Open        []uint32
	OpenService uint8
	Admitted    []netip.AddrPort
}

func (f *Filter) empty() bool { return len(f.Ignored) == 0 && !f.Restrict }

// SetFilter replaces the filter of the socket, from the next packet on. The first packet of a
// train decides for all. Groups that the socket has joined are not filtered. After an error,
// which matches [errors.ErrUnsupported] where the system cannot do it, there is no filter. Any
// goroutine may call it.
func (s *Socket) SetFilter(f Filter) error {
	if len(f.Ignored) > MaxIgnored || len(f.Open) > MaxOpen || len(f.Admitted) > MaxAdmitted {
		_ = s.io.setFilter(&Filter{})
		return fmt.Errorf("link: filter of UDP %s: %d hosts to ignore, %d open queue pairs and %d sources, and at most %d, %d and %d are possible",
			s.addr, len(f.Ignored), len(f.Open), len(f.Admitted), MaxIgnored, MaxOpen, MaxAdmitted)
	}
	if err := s.io.setFilter(&f); err != nil {
		return fmt.Errorf("link: filter of UDP %s: %w", s.addr, err)
	}
	return nil
}

// Dropped is how many packets to its address the system has dropped at this socket: those that
// the filter has, those that its buffer had no room for, and those with a wrong UDP checksum. A
// train counts as one. It is 0 where the system does not say. Any goroutine may call it; between
// two calls 2^32 packets must not be dropped.
func (s *Socket) Dropped() uint64 { return s.io.dropped() }

// Wait blocks until a packet or a report for Unreachable is there, the deadline
// passes (zero: never), or another goroutine calls Interrupt; it returns nil then. After Close it
// returns [net.ErrClosed]. It occupies no thread while it waits.
func (s *Socket) Wait(deadline time.Time) error { return s.io.wait(deadline) }

// Interrupt makes the present Wait return, or the next one if there is none.
func (s *Socket) Interrupt() { s.io.interrupt() }

// SetDeadline makes the present Wait, or the next one if there is none, return
// at t at the latest. It never moves a deadline to a later time.
func (s *Socket) SetDeadline(t time.Time) { s.io.setDeadline(t) }

// Close closes the socket; packets collected and not sent are gone. A Wait in
// progress returns. Closing again does nothing.
func (s *Socket) Close() error { return s.io.close() }

// earlier returns the earlier of two deadlines; zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}
