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
	// ErrSegmentation: the kernel refused segmentation offload for a route. The socket does
	// not use it from now on.
	ErrSegmentation = errors.New("segmentation offload refused")
	// ErrSendPort: no port of Config.SendPorts is free.
	ErrSendPort = errors.New("no free port to send from")
)

const (
	// MaxPacket is the largest packet, in bytes of UDP payload, and the largest
	// train. It leaves room for the IP and UDP headers in a 16-bit length.
	MaxPacket = 65000

	defaultBuffer = 4 << 20
	maxSegments   = 64 // the UDP_MAX_SEGMENTS of Linux up to 6.8; later kernels take more
	sendTimeout   = time.Millisecond
)

// Config configures a [Socket].
type Config struct {
	// Addr is the local address. Port 0 takes any free port. A zone serves as Interface if
	// that is empty.
	Addr netip.AddrPort
	// Interface names the network interface of multicast groups and of IPv6 link-local
	// addresses, local and remote. Other addresses do not need it. Empty: groups are on the
	// interface that has Addr.
	Interface string

	// SendPorts makes packets leave from a separate port, a free one in this range. Packets to
	// that port are dropped. The zero value: packets leave from Addr's port.
	SendPorts PortRange
	// Exclusive binds Addr's port at all addresses of the host. Packets have Addr as their
	// source; packets to the host's other addresses are received too.
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

	// SendBuffer and ReceiveBuffer are the buffer sizes requested from the kernel, in bytes.
	// Zero requests 4 MiB. The kernel may grant less.
	SendBuffer    int
	ReceiveBuffer int

	// WaitSet is where to wait for packets. Nil: in a set of its own, which Close closes.
	WaitSet WaitSet

	// Bound is a socket of [Bind] that receives for Addr; the Socket closes it, also after an error.
	// Zero: a new one.
	Bound int

	share backend // socket that already has the address; nil: none
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
	// ReceiveBuffer is what the kernel granted, in bytes, in its own accounting (see SO_RCVBUF
	// in socket(7)); 0 if unknown.
	ReceiveBuffer int
}

// Datagram is one packet received.
type Datagram struct {
	Src  netip.AddrPort // without zone; never an IPv4-mapped IPv6 address
	Data []byte
	// Group is the multicast group that the packet was sent to. Not valid: it was sent to the
	// socket's address.
	Group netip.Addr
	// Port is the UDP port that the packet was sent to; 0: the socket's.
	Port uint16
	// Segment is the index of the packet in the train that it arrived in, 0 if it arrived
	// alone. It is the IPv4 identification only if the sender's train arrived whole.
	Segment int
	// Header holds fields of the packet's IP header, while [Socket.ReceiveHeaders] is on.
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
	// send sends all messages of b, and counts dropped packets and the first error in b.
	send(b *batch)
	receive() ([]Datagram, error)
	receiveHeaders(on bool) error
	join(group netip.AddrPort) error
	checkRoute(to netip.AddrPort) error
	leave(group netip.AddrPort) error
	unreachable() []Refusal
	setFilter(f *Filter) error
	dropped() uint64
	features() Features
	sendPort() uint16
	// ended, endsWait and waitSet implement Ready, EndWait and WaitSet.
	ended() bool
	endsWait(on bool)
	waitSet() WaitSet
	// share opens another socket at the same address, in a set of its own if set is nil, unless one
	// is bound already.
	share(set WaitSet, bound int) (backend, error)
	// steer chooses among sockets that share an address.
	steer(slots []int) error
	close() error
}

// Listen opens a socket on cfg.Addr. The error names the address. It matches [ErrAddress] if
// the address cannot be used, [syscall.EADDRINUSE] if another socket has it, and [ErrSendPort]
// if all of cfg.SendPorts are taken.
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
		return nil, fmt.Errorf("link: listen on UDP %s: %s%w", cfg.Addr, hint(err, cfg.Addr.Addr(), cfg.Exclusive), err)
	}
	return newSocket(io, bound), nil
}

func newSocket(io backend, addr netip.AddrPort) *Socket {
	s := &Socket{io: io, addr: addr, source: netip.AddrPortFrom(addr.Addr(), io.sendPort())}
	s.batch.init(addr.Addr().Is4(), io.features().MaxSegments)
	return s
}

// Share opens another socket at the same address, in that wait set, for use by another goroutine.
// Steer decides which of them receives a packet; all send from the same port. Programs of other
// users still cannot take the address, and those of the same user only with SO_REUSEPORT. The
// error matches [errors.ErrUnsupported] if the system cannot do it. Bound is [Config.Bound].
func (s *Socket) Share(set WaitSet, bound int) (*Socket, error) {
	io, err := s.io.share(set, bound)
	if err != nil {
		return nil, fmt.Errorf("link: open another socket at UDP %s: %w", s.addr, err)
	}
	return newSocket(io, s.addr), nil
}

// Slots is how many sockets can share an address. The low bits of a queue pair number are its slot.
const Slots = 16

// Steer distributes packets among the sockets that share the address, by the slots of the
// sockets in the order in which they were opened. The slot of a packet is that of its destination queue
// pair number. The first socket receives the packets without such a socket, and those to queue
// pairs 0 and 1 (IBTA 3.5.10). The first packet of a train decides for all.
func (s *Socket) Steer(slots []int) error {
	if err := s.io.steer(slots); err != nil {
		return fmt.Errorf("link: steer packets among %d sockets at UDP %s: %w", len(slots), s.addr, err)
	}
	return nil
}

// hint explains common failures to the user.
func hint(err error, addr netip.Addr, exclusive bool) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE) && exclusive:
		return "the address is in use by another socket, or its port at another address of this host; choose another port: "
	case errors.Is(err, syscall.EADDRINUSE):
		return "the address is in use by another socket; choose another address or port: "
	case errors.Is(err, syscall.EADDRNOTAVAIL) && isTentative(addr):
		return "the address is tentative: the system checks whether another host has it, or has found one that does; try again when \"ip address\" shows it without \"tentative\", or choose another address: "
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "no interface of this host has the address: "
	}
	return ""
}

func errNoSendPort(r PortRange) error {
	return fmt.Errorf("%w: all ports from %d to %d are in use on this host; close some devices or other programs that use them", ErrSendPort, r.First, r.Last)
}

// Addr returns the local address, with the port that was bound and without zone.
func (s *Socket) Addr() netip.AddrPort { return s.addr }

// Source returns the source of packets as receivers see it: the local address, and the port
// that packets leave from.
//
// On Linux with SendPorts or Exclusive in [Config], that port is bound at all addresses of the
// host and shared with no other program. So no program without privileges can send from this
// source. If the port were bound at a single address, a program could bind it at another
// address, and choose the source of each packet itself (IP_PKTINFO in ip(7)).
func (s *Socket) Source() netip.AddrPort { return s.source }

// Features returns what is in use now. Segmentation changes from true to false if the kernel
// refuses it while sending.
func (s *Socket) Features() Features { return s.io.features() }

// Receive returns queued packets, up to a batch, and never blocks. It returns nothing if none
// are queued. The slice and its data are valid until the next Receive. It allocates nothing.
func (s *Socket) Receive() ([]Datagram, error) { return s.io.receive() }

// ReceiveHeaders sets whether Receive fills in the field Header of the packets that it returns
// from now on. A portable socket cannot; its error matches [errors.ErrUnsupported].
func (s *Socket) ReceiveHeaders(on bool) error { return s.io.receiveHeaders(on) }

// Join makes Receive return packets to a multicast group and port too, from the network
// interface that has the socket's address. Other sockets of the machine may have joined it as
// well; each gets a copy, and this socket gets a copy of what it sends. Joining again does
// nothing. Join and Leave are called by the receiving goroutine. Errors match [ErrAddress],
// [syscall.EADDRINUSE] if a program has the port and does not share it, and
// [errors.ErrUnsupported] on a portable socket.
func (s *Socket) Join(group netip.AddrPort) error {
	group = netip.AddrPortFrom(group.Addr().Unmap().WithZone(""), group.Port())
	if !group.Addr().IsMulticast() || group.Addr().Is4() != s.addr.Addr().Is4() {
		return fmt.Errorf("link: join %s: it is not an %s multicast group: %w", group, family(s.addr.Addr().Is4()), ErrAddress)
	}
	if err := s.io.join(group); err != nil {
		return fmt.Errorf("link: join %s at %s: %w", group, s.addr, err)
	}
	return nil
}

// CheckRoute returns an error if the system has no route for packets of this socket to an
// address, for instance [syscall.ENETUNREACH]. Nothing is sent. Any goroutine may call it.
func (s *Socket) CheckRoute(to netip.AddrPort) error {
	if err := s.io.checkRoute(to); err != nil {
		return fmt.Errorf("link: find the route from %s to %s: %w", s.addr, to, err)
	}
	return nil
}

// Leave undoes Join. Packets that are queued are dropped.
func (s *Socket) Leave(group netip.AddrPort) error {
	if err := s.io.leave(netip.AddrPortFrom(group.Addr().Unmap().WithZone(""), group.Port())); err != nil {
		return fmt.Errorf("link: leave %s at %s: %w", group, s.addr, err)
	}
	return nil
}

// Refusal is the network's report, by ICMP, that nothing listens at a peer's port or that the peer's
// host cannot be reached.
type Refusal struct {
	Peer netip.AddrPort
	// Errno is what connect(2) of TCP fails with after such a report: ECONNREFUSED, or why the host cannot be
	// reached: EHOSTUNREACH, ENETUNREACH or EACCES. These are reported of management datagrams only.
	Errno syscall.Errno
	// Packet is the beginning of the packet that was refused, if it was for queue pair 1: it has
	// the transaction ID of the management datagram. What a report does not quote is zero.
	Packet [quotedBytes]byte
}

const quotedBytes = 36

// Unreachable returns the reports since the last call, at most 64, each once. It is called by the
// receiving goroutine; the slice is valid until the next call. It makes no system call: reports
// come in with Receive, Flush and Wait, which returns for them. There are none if the system does
// not pass them on. Any host on the path can forge a report, but only one that sees the packets
// can quote them.
func (s *Socket) Unreachable() []Refusal { return s.io.unreachable() }

// The limits of a [Filter]. The system limits the length of its program: a filter at all
// limits fits if net.core.optmem_max is 20480, as it was up to Linux 6.8.
const (
	MaxIgnored  = 16
	MaxOpen     = 16
	MaxAdmitted = 128
)

// Filter says which packets the system drops before they reach a socket. Such packets wake no
// goroutine and take no room in the socket's buffer. If the sender is a program of the same
// machine, it is charged with the time to drop them. Addresses are of the socket's family, and
// without zone. The zero value drops none.
type Filter struct {
	// Ignored are hosts whose packets to queue pair IgnoredQPN are dropped. An IPv6 address
	// stands for all addresses with the same upper 64 bits.
	Ignored    []netip.Addr
	IgnoredQPN uint32

	// Restrict drops all packets except those to Open queue pairs, those of OpenService (the
	// upper three bits of the opcode; zero: no service), and those from Admitted. Port 0
	// stands for all ports of the address.
	Restrict    bool
	Open        []uint32
	OpenService uint8
	Admitted    []netip.AddrPort
}

func (f *Filter) empty() bool { return len(f.Ignored) == 0 && !f.Restrict }

// SetFilter replaces the filter of the socket, from the next packet on. The first packet of a
// train decides for all. Groups that the socket has joined are not filtered. After an error,
// which matches [errors.ErrUnsupported] if the system cannot filter, there is no filter. Any
// goroutine may call it.
func (s *Socket) SetFilter(f Filter) error {
	if len(f.Ignored) > MaxIgnored || len(f.Open) > MaxOpen || len(f.Admitted) > MaxAdmitted {
		_ = s.io.setFilter(&Filter{})
		return fmt.Errorf("link: set the filter of UDP %s: %d hosts to ignore, %d open queue pairs and %d sources; the limits are %d, %d and %d",
			s.addr, len(f.Ignored), len(f.Open), len(f.Admitted), MaxIgnored, MaxOpen, MaxAdmitted)
	}
	if err := s.io.setFilter(&f); err != nil {
		return fmt.Errorf("link: set the filter of UDP %s: %w", s.addr, err)
	}
	return nil
}

// Dropped returns how many packets to its address the system has dropped at this socket: by
// the filter, for lack of room in the buffer, or for a wrong UDP checksum. A train counts as
// one. It is 0 if the system does not report it. Any goroutine may call it, at least once per
// 2^32 dropped packets.
func (s *Socket) Dropped() uint64 { return s.io.dropped() }

// WaitSet is where to wait for packets. That of a socket in a network in memory has no Wait.
func (s *Socket) WaitSet() WaitSet { return s.io.waitSet() }

// Ready reports whether packets or reports may have come: a wait has ended for the socket, and
// Receive has returned packets since. It is always true where Receive makes no system call.
func (s *Socket) Ready() bool { return s.io.ended() }

// EndWait sets whether packets end a wait, at least from the second one on. By default they do.
func (s *Socket) EndWait(on bool) { s.io.endsWait(on) }

// Close closes the socket; packets collected and not sent are dropped. Closing again does nothing.
func (s *Socket) Close() error { return s.io.close() }

// earlier returns the earlier of two deadlines; zero means none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}
