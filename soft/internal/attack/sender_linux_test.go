package attack

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

// sendMethod says where an attacker is and how it sends.
type sendMethod int

const (
	// byPort: a process of the peer's host, without privileges, from the peer's address and a
	// port of its own.
	byPort sendMethod = iota
	// byPacketInfo: the same, bound to the peer's port at another address of the host, and
	// IP_PKTINFO or IPV6_PKTINFO names the peer's address.
	byPacketInfo
	// byOwnAddress: another host, or a process with an address of its own.
	byOwnAddress
	// bySpoofing: another host that sends packets with any source address and port (CAP_NET_RAW
	// there, and a network that lets them pass).
	bySpoofing
	// bySameUser: a process of the victims' user.
	bySameUser
)

// sender sends packets from one address to another.
type sender struct {
	from, to netip.AddrPort
	flow     wire.Flow
	conn     *net.UDPConn
	control  []byte
	raw      int // a socket, or -1
	buf      []byte
	sent     int64
}

// dontFragment makes the identification of IPv4 packets zero, as the ICRC needs it.
func dontFragment(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) { // IPv6 has neither
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	})
}

func bind(at netip.AddrPort) (*net.UDPConn, error) {
	lc := net.ListenConfig{Control: dontFragment}
	c, err := lc.ListenPacket(context.Background(), "udp", at.String())
	if err != nil {
		return nil, fmt.Errorf("bind an attacker's socket to %v: %w", at, err)
	}
	u := c.(*net.UDPConn)
	_ = u.SetReadBuffer(8 << 20)
	return u, nil
}

func localAddr(c *net.UDPConn) netip.AddrPort {
	a := c.LocalAddr().(*net.UDPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// newSender returns a sender with the attacker's own socket.
func newSender(conn *net.UDPConn, to netip.AddrPort) *sender {
	s := &sender{conn: conn, raw: -1, from: localAddr(conn), to: to}
	s.prepare()
	return s
}

func (s *sender) prepare() {
	s.flow = wire.NewFlow(s.from, s.to)
	s.buf = make([]byte, 28, wire.MaxDatagramLen+28)
}

// newSenderAs returns a sender with the source address from, by the given method. own is an address
// of the attacker.
func newSenderAs(v sendMethod, own netip.Addr, from, to netip.AddrPort) (*sender, error) {
	switch v {
	case byPort:
		conn, err := bind(netip.AddrPortFrom(from.Addr(), entropyPort(from)))
		if err != nil {
			return nil, err
		}
		return newSender(conn, to), nil
	case byOwnAddress:
		conn, err := bind(netip.AddrPortFrom(own, 0))
		if err != nil {
			return nil, err
		}
		return newSender(conn, to), nil
	case byPacketInfo:
		conn, err := bind(netip.AddrPortFrom(own, from.Port()))
		if err != nil {
			return nil, err
		}
		return newSender(conn, to).withSource(from), nil
	}
	raw, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return nil, fmt.Errorf("open a raw socket: %w", err)
	}
	s := &sender{from: from, to: to, raw: raw}
	s.prepare()
	return s, nil
}

// entropyPort is a source port that any sender of RoCEv2 may choose.
func entropyPort(from netip.AddrPort) uint16 {
	for port := uint16(50001); ; port++ {
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from.Addr(), port)))
		if err == nil {
			_ = c.Close()
			return port
		}
		if port == 60000 {
			return 0
		}
	}
}

// packetInfo makes the kernel send from an address that the socket is not bound to (ip(7),
// ipv6(7)).
func packetInfo(from netip.Addr) []byte {
	if from.Is4() {
		return unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: from.As4()})
	}
	return unix.PktInfo6(&unix.Inet6Pktinfo{Addr: from.As16()})
}

// withSource returns a sender that sends from another address by the same socket.
func (s *sender) withSource(from netip.AddrPort) *sender {
	other := &sender{conn: s.conn, raw: -1, from: from, to: s.to, control: packetInfo(from.Addr())}
	other.prepare()
	return other
}

func (s *sender) close() {
	if s.conn != nil {
		_ = s.conn.Close()
	}
	if s.raw >= 0 {
		_ = unix.Close(s.raw)
	}
}

// send sends a packet with its padding and the right ICRC.
func (s *sender) send(p *wire.Packet) {
	if p.PKey == 0 {
		p.PKey = 0xffff
	}
	p.MigReq, p.Pad = true, uint8(-len(p.Payload)&3)
	b := s.buf[28:cap(s.buf)]
	n := p.PutHeaders(b)
	n += copy(b[n:], p.Payload)
	n += copy(b[n:], make([]byte, p.Pad))
	header := p.Opcode.HeaderLen()
	crc := s.flow.ICRCStart(0, n+wire.ICRCLen, b[:header])
	wire.PutICRC(b[n:], wire.ICRCFinish(wire.ICRCUpdate(crc, b[header:n])))
	s.sendBytes(b[:n+wire.ICRCLen])
}

// sendBytes sends the payload of a UDP packet. Errors are ignored, since networks lose packets too.
func (s *sender) sendBytes(b []byte) {
	s.sent++
	if s.raw < 0 {
		_, _, _ = s.conn.WriteMsgUDPAddrPort(b, s.control, s.to)
		return
	}
	h := s.buf[:28]
	clear(h)
	h[0], h[8], h[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(h[2:], uint16(28+len(b)))
	h[6] = 0x40 // don't fragment
	copy(h[12:], s.from.Addr().AsSlice())
	copy(h[16:], s.to.Addr().AsSlice())
	binary.BigEndian.PutUint16(h[20:], s.from.Port())
	binary.BigEndian.PutUint16(h[22:], s.to.Port())
	binary.BigEndian.PutUint16(h[24:], uint16(8+len(b)))
	copy(s.buf[28:cap(s.buf)], b)
	_ = unix.Sendto(s.raw, s.buf[:28+len(b)], 0, &unix.SockaddrInet4{Addr: s.to.Addr().As4()})
}
