// Package ipheader writes packet captures (pcap), and builds the IP headers that a UDP socket
// does not show, for captures and for received datagrams.
package ipheader

import (
	"encoding/binary"
	"net/netip"

	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	IPv4Len     = 20
	IPv6Len     = 40
	UDPLen      = 8
	protocolUDP = 17

	DefaultHopLimit = 64
)

// appendIPHeader appends the IP header of a UDP datagram of n bytes, including the UDP header.
func appendIPHeader(b []byte, src, dst netip.Addr, h link.Header, ident uint16, n int) []byte {
	if h.HopLimit == 0 {
		h.HopLimit = DefaultHopLimit
		if dst.IsMulticast() {
			h.HopLimit = 1
		}
	}
	if src.Is6() {
		b = binary.BigEndian.AppendUint32(b, 6<<28|uint32(h.TrafficClass)<<20|h.FlowLabel)
		b = binary.BigEndian.AppendUint16(b, uint16(n))
		b = append(b, protocolUDP, h.HopLimit)
		from, to := src.As16(), dst.As16()
		return append(append(b, from[:]...), to[:]...)
	}
	start := len(b)
	b = append(b, 0x45, h.TrafficClass)
	b = binary.BigEndian.AppendUint16(b, uint16(IPv4Len+n))
	b = binary.BigEndian.AppendUint16(b, ident)
	b = append(b, 0x40, 0, h.HopLimit, protocolUDP, 0, 0) // do not fragment
	from, to := src.As4(), dst.As4()
	b = append(append(b, from[:]...), to[:]...)
	binary.BigEndian.PutUint16(b[start+10:], ^Fold(Sum(b[start:], 0)))
	return b
}

// Sum adds 16-bit words as the Internet checksum does (RFC 1071).
func Sum(b []byte, s uint32) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		s += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	return s
}

// Fold reduces a sum to 16 bits.
func Fold(s uint32) uint16 {
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// PutGRH writes the header that precedes the data of a received datagram. On RoCEv2 that is
// the IP header, with an IPv4 header in the last 20 of the 40 bytes (annex A17.4.5.1). Fields
// that the UDP socket does not show have the values that this device sends.
func PutGRH(grh *[verbs.GRHLen]byte, src, dst netip.Addr, h link.Header, n int) {
	at := 0
	if src.Is4() {
		at = verbs.GRHLen - IPv4Len
	}
	clear(grh[:at])
	appendIPHeader(grh[:at], src, dst, h, 0, UDPLen+n)
}
