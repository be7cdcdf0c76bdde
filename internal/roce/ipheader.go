package roce

import (
	"encoding/binary"
	"net/netip"

	"github.com/verbena-rdma/verbena/internal/roce/transport"
)

const (
	ipv4Header  = 20
	ipv6Header  = 40
	udpHeader   = 8
	defaultTTL  = 64
	protocolUDP = 17
)

// appendIPHeader appends the IP header of a UDP datagram of n bytes, its own
// header included, as this device sends it.
func appendIPHeader(b []byte, src, dst netip.Addr, ident uint16, n int) []byte {
	if src.Is6() {
		b = append(b, 0x60, 0, 0, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(n))
		b = append(b, protocolUDP, defaultTTL)
		from, to := src.As16(), dst.As16()
		return append(append(b, from[:]...), to[:]...)
	}
	start := len(b)
	b = append(b, 0x45, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(ipv4Header+n))
	b = binary.BigEndian.AppendUint16(b, ident)
	b = append(b, 0x40, 0, defaultTTL, protocolUDP, 0, 0) // do not fragment
	from, to := src.As4(), dst.As4()
	b = append(append(b, from[:]...), to[:]...)
	binary.BigEndian.PutUint16(b[start+10:], ^fold(sum(b[start:], 0)))
	return b
}

// sum adds 16-bit words as the Internet checksum does (RFC 1071).
func sum(b []byte, s uint32) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		s += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	return s
}

func fold(s uint32) uint16 {
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// putGRH makes the header that precedes the data of a received datagram. On RoCEv2 that is
// the IP header, an IPv4 one in the last 20 of the 40 bytes (annex A17.4.5.1). A
// UDP socket shows the addresses and the length; the other fields are as this
// device sends them.
func putGRH(grh *[transport.GRHLen]byte, src, dst netip.Addr, n int) {
	at := 0
	if src.Is4() {
		at = transport.GRHLen - ipv4Header
	}
	clear(grh[:at])
	appendIPHeader(grh[:at], src, dst, 0, udpHeader+n)
}
