package mad

import (
	"encoding/binary"
	"net/netip"
)

// IPHeaderLen is the length of the RDMA CM header, at the start of the private data of a REQ
// or a SIDR_REQ. The application's data follow.
const IPHeaderLen = 36

// IPHeader is the RDMA CM header of private data (annex A11).
type IPHeader struct {
	Source, Destination netip.Addr // both IPv4 or both IPv6, without a zone
	SourcePort          uint16
}

// Encode writes the header. If only one address is IPv4, both are written as IPv6.
func (h *IPHeader) Encode(b *[IPHeaderLen]byte) {
	clear(b[:])
	binary.BigEndian.PutUint16(b[2:], h.SourcePort)
	source, destination := h.Source.Unmap(), h.Destination.Unmap()
	if source.Is4() && destination.Is4() {
		b[1] = 4 << 4
		s, d := source.As4(), destination.As4()
		copy(b[16:], s[:])
		copy(b[32:], d[:])
		return
	}
	b[1] = 6 << 4
	if source.IsValid() && destination.IsValid() {
		s, d := source.As16(), destination.As16()
		copy(b[4:], s[:])
		copy(b[20:], d[:])
	}
}

// Decode reads the header from the start of private data.
func (h *IPHeader) Decode(b []byte) error {
	if len(b) < IPHeaderLen || b[0] != 0 {
		return ErrIPHeader
	}
	*h = IPHeader{SourcePort: binary.BigEndian.Uint16(b[2:])}
	switch b[1] >> 4 {
	case 4:
		h.Source, h.Destination = netip.AddrFrom4([4]byte(b[16:])), netip.AddrFrom4([4]byte(b[32:]))
	case 6:
		h.Source, h.Destination = netip.AddrFrom16([16]byte(b[4:])), netip.AddrFrom16([16]byte(b[20:]))
	default:
		return ErrIPHeader
	}
	return nil
}
