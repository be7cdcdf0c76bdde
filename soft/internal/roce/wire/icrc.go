package wire

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
)

// The ICRC is the CRC-32/IEEE of eight 0xff bytes in place of the local route
// header, the IP header, the UDP header and the packet up to the ICRC, with ones
// in place of what may change on the way: IPv4's type of service, time to live
// and checksum; IPv6's traffic class, flow label and hop limit; UDP's checksum;
// the fifth byte of the base transport header (IBTA 7.8, annex A17).
const (
	routeLen    = 8
	ipv4Len     = 20
	ipv6Len     = 40
	udpLen      = 8
	ipv4Prefix  = routeLen + ipv4Len + udpLen
	ipv6Prefix  = routeLen + ipv6Len + udpLen
	ipv4LenAt   = routeLen + 2
	ipv4IdentAt = routeLen + 4
	ipv6LenAt   = routeLen + 4
	udpLenInUDP = 4

	ipv4DontFragment = 0x40
	protocolUDP      = 17

	// The byte that holds FECN, BECN and reserved bits, in the first eight bytes
	// read as a little-endian number.
	bthMask = 0xff << (4 * 8)

	// Up to this length crcShort is faster than hash/crc32.
	shortLen = 64
)

// Tables of what the fields that differ from packet to packet add to the register at the end
// of the UDP header.
var (
	ipv4Total = makeField16(ipv4Prefix - ipv4LenAt - 2)
	ipv4Ident = makeField16(ipv4Prefix - ipv4IdentAt - 2)
	ipv6Total = makeField16(ipv6Prefix - ipv6LenAt - 2)
	udpTotal  = makeField16(udpLen - udpLenInUDP - 2)
)

// identRewind[n/4] times the difference of two ICRCs of a packet of n bytes is
// the difference of their identifications (see unfield16).
var identRewind = makeIdentRewind()

func makeIdentRewind() *[MaxDatagramLen/4 + 1]uint32 {
	const x0 = 1 << 31
	word := uint32(x0)
	for range 32 {
		word = rewindBit(word)
	}
	t := new([MaxDatagramLen/4 + 1]uint32)
	// The register is advanced over the identification, the rest of the prefix and
	// the packet without its ICRC.
	r := uint32(x0)
	for range 8 * (ipv4Prefix - ipv4IdentAt) {
		r = rewindBit(r)
	}
	for i := ICRCLen / 4; i < len(t); i++ {
		t[i] = r
		r = multiply(r, word)
	}
	return t
}

type family uint8

const (
	noFamily family = iota
	ipv4
	ipv6
)

// Flow is one direction between two UDP endpoints. It holds the CRC register after the IP and
// UDP headers, which every packet of that direction begins with. A Flow does not change, and
// may be copied and shared between goroutines. The zero Flow is not valid.
type Flow struct {
	prefix uint32 // the register after the headers with zero lengths and identification
	family family
}

// NewFlow returns the Flow of the packets from src to dst. IPv4 addresses mapped into IPv6
// count as IPv4; zones are ignored. The packets must be IPv4 with "don't fragment" and no
// options, or IPv6 without extension headers. If the addresses are not of one family, the Flow
// is not valid.
func NewFlow(src, dst netip.AddrPort) Flow {
	from, to := src.Addr().Unmap(), dst.Addr().Unmap()
	var b [ipv6Prefix]byte
	for i := range routeLen {
		b[i] = 0xff
	}
	var flow Flow
	var udp []byte
	switch ip := b[routeLen:]; {
	case from.Is4() && to.Is4():
		flow.family = ipv4
		ip[0] = 4<<4 | ipv4Len/4
		ip[1] = 0xff // type of service
		ip[6] = ipv4DontFragment
		ip[8] = 0xff // time to live
		ip[9] = protocolUDP
		ip[10], ip[11] = 0xff, 0xff // header checksum
		a, z := from.As4(), to.As4()
		copy(ip[12:], a[:])
		copy(ip[16:], z[:])
		udp = ip[ipv4Len : ipv4Len+udpLen]
	case from.Is6() && to.Is6():
		flow.family = ipv6
		ip[0] = 6<<4 | 0x0f // traffic class, flow label
		ip[1], ip[2], ip[3] = 0xff, 0xff, 0xff
		ip[6] = protocolUDP
		ip[7] = 0xff // hop limit
		a, z := from.As16(), to.As16()
		copy(ip[8:], a[:])
		copy(ip[24:], z[:])
		udp = ip[ipv6Len : ipv6Len+udpLen]
	default:
		return Flow{}
	}
	binary.BigEndian.PutUint16(udp[0:], src.Port())
	binary.BigEndian.PutUint16(udp[2:], dst.Port())
	udp[6], udp[7] = 0xff, 0xff // checksum
	n := ipv4Prefix
	if flow.family == ipv6 {
		n = ipv6Prefix
	}
	flow.prefix = crcShort(^uint32(0), b[:n])
	return flow
}

// Valid reports whether the Flow was made from two addresses of one family.
func (f *Flow) Valid() bool { return f.family != noFamily }

// start is the register after the IP and UDP headers.
func (f *Flow) start(ident uint16, udpPayloadLen int) uint32 {
	udp := uint16(udpPayloadLen + udpLen)
	if f.family == ipv6 {
		return f.prefix ^ ipv6Total.of(udp) ^ udpTotal.of(udp)
	}
	return f.prefix ^ ipv4Total.of(udp+ipv4Len) ^ udpTotal.of(udp) ^ ipv4Ident.of(ident)
}

// ICRCStart begins the ICRC of a packet. ident is the identification of its IPv4 header,
// ignored for IPv6. udpPayloadLen is the length of the UDP payload in bytes: headers, payload,
// padding and ICRC. headers are as [Packet.PutHeaders] wrote them; ICRCStart neither changes
// nor keeps them. The result is meaningless if headers are shorter than the base transport
// header, or if the Flow is not valid.
//
// Continue with [ICRCUpdate] for payload and padding, in pieces of any length, and end with
// [ICRCFinish].
func (f *Flow) ICRCStart(ident uint16, udpPayloadLen int, headers []byte) uint32 {
	r := f.start(ident, udpPayloadLen)
	if len(headers) < BTHLen {
		return r
	}
	r = crcDouble(r, binary.LittleEndian.Uint64(headers)|bthMask)
	return crcShort(r, headers[8:])
}

// ICRCUpdate adds the next bytes of the packet to the CRC.
func ICRCUpdate(crc uint32, p []byte) uint32 {
	if hasLong && len(p) >= longBlock {
		crc, p = crcLong(crc, p)
	}
	if len(p) < shortLen {
		return crcShort(crc, p)
	}
	return ^crc32.Update(^crc, crc32.IEEETable, p)
}

// ICRCFinish is the ICRC of the bytes so far.
func ICRCFinish(crc uint32) uint32 { return ^crc }

// PutICRC writes a finished ICRC to the first [ICRCLen] bytes of dst, in the
// byte order of the wire. A shorter dst stays as it is.
func PutICRC(dst []byte, icrc uint32) {
	if len(dst) >= ICRCLen {
		binary.LittleEndian.PutUint32(dst, icrc)
	}
}

// CheckICRC reports whether the ICRC at the end of a received datagram is right. It checks
// nothing else in the packet. It returns false for a datagram that is too short, too long or
// not a multiple of 4 bytes, and if the Flow is not valid.
//
// The ICRC covers the identification of an IPv4 packet, which a UDP socket does not show.
// CheckICRC tries the expected identification, identHint, first, because that is quicker. If
// it does not match, the ICRC is right if any identification matches. A random corruption of
// an IPv4 packet therefore passes with probability 2^-16, of an IPv6 packet with 2^-32.
func (f *Flow) CheckICRC(datagram []byte, identHint uint16) bool {
	_, ok := f.findIdent(datagram, identHint)
	return ok
}

// findIdent returns the identification that makes the datagram's ICRC right. There is at most
// one, since the map from identifications to ICRCs is linear and one-to-one. For IPv6 it
// returns hint.
func (f *Flow) findIdent(datagram []byte, hint uint16) (ident uint16, ok bool) {
	n := len(datagram)
	if n < BTHLen+ICRCLen || n > MaxDatagramLen || n%4 != 0 || !f.Valid() {
		return 0, false
	}
	r := f.start(hint, n)
	r = crcDouble(r, binary.LittleEndian.Uint64(datagram)|bthMask)
	r = ICRCUpdate(r, datagram[8:n-ICRCLen])
	difference := ICRCFinish(r) ^ binary.LittleEndian.Uint32(datagram[n-ICRCLen:])
	if difference == 0 {
		return hint, true
	}
	if f.family == ipv6 {
		return 0, false
	}
	ident, ok = unfield16(multiply(difference, identRewind[n/4]))
	return ident ^ hint, ok
}
