package verbs

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// GRHLen is the length of the header in front of a received datagram, in bytes.
const GRHLen = 40

// GRH is the header in front of a received datagram: a global routing header (IBTA
// 8.3), or on RoCEv2 the IP header in its place (annex A17.4.5.1).
type GRH struct {
	SGID         GID    // of the sender
	DGID         GID    // the destination: the own GID, or a group
	TrafficClass uint8  // DSCP and ECN on RoCEv2
	FlowLabel    uint32 // 20 bits; zero on IPv4
	HopLimit     uint8  // remaining
}

// ParseGRH reads the header from the first bytes of a receive whose WC.HasGRH is set. The
// error matches ErrInvalid: there are fewer than GRHLen bytes, or they are no such header.
func ParseGRH(b []byte) (GRH, error) {
	if len(b) < GRHLen {
		return GRH{}, fmt.Errorf("parse GRH: %d bytes; a GRH has %d: %w", len(b), GRHLen, ErrInvalid)
	}
	if is4(b) {
		b = b[GRHLen-20:]
		return GRH{
			SGID: GIDFromAddr(netip.AddrFrom4([4]byte(b[12:]))), DGID: GIDFromAddr(netip.AddrFrom4([4]byte(b[16:]))),
			TrafficClass: b[1], HopLimit: b[8],
		}, nil
	}
	first := binary.BigEndian.Uint32(b)
	if first>>28 != 6 {
		return GRH{}, fmt.Errorf("parse GRH: the version is %d, and the last 20 bytes are not an IPv4 header: %w", first>>28, ErrInvalid)
	}
	return GRH{
		SGID: GID(b[8:]), DGID: GID(b[24:]),
		TrafficClass: uint8(first >> 20), FlowLabel: first & 0xfffff, HopLimit: b[7],
	}, nil
}

// is4 reports whether the last 20 bytes are an IPv4 header. The bytes before it have no
// meaning then, and can look like another header, so the checksum decides.
func is4(b []byte) bool {
	h := b[GRHLen-20:]
	if h[0] != 0x45 {
		return false
	}
	sum := uint32(0)
	for i := 0; i < len(h); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	sum = sum>>16 + sum&0xffff
	return sum>>16+sum&0xffff == 0xffff || b[0]>>4 != 6
}

// ReplyAddress is the address of the sender of a datagram, as CreateAH takes it
// (ibv_init_ah_from_wc(3)). grh precedes the data of the receive; table is that of the port
// that received it. The answer to a datagram that came to a multicast group leaves from the
// first entry of the same kind. The error matches ErrInvalid where the completion has no
// header, or the table no such entry.
func ReplyAddress(wc *WC, grh []byte, table []GIDEntry) (AddressAttr, error) {
	if !wc.HasGRH {
		return AddressAttr{}, fmt.Errorf("reply address: the completion has no GRH: %w", ErrInvalid)
	}
	h, err := ParseGRH(grh)
	if err != nil {
		return AddressAttr{}, fmt.Errorf("reply address: %w", err)
	}
	for _, e := range table {
		if e.Type == GIDRoCEv1 || e.GID != h.DGID && !(h.DGID.Addr().IsMulticast() && e.GID.Addr().Is4() == h.SGID.Addr().Is4()) {
			continue
		}
		return AddressAttr{
			DGID: h.SGID, SGIDIndex: e.Index, SL: wc.SL, TrafficClass: h.TrafficClass &^ 3, FlowLabel: h.FlowLabel,
			DLID: wc.SLID, UDPPort: wc.SrcUDPPort,
		}, nil
	}
	return AddressAttr{}, fmt.Errorf("reply address: the port has no GID %v, to which the datagram was sent: %w", h.DGID, ErrInvalid)
}
