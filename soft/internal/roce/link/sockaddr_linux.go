package link

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sockaddr holds a struct sockaddr_in or sockaddr_in6.
type sockaddr struct{ unix.RawSockaddrInet6 }

// encode writes a, with the zone that link-local addresses and groups need, and returns the
// size.
func (s *sockaddr) encode(a netip.AddrPort, zone uint32) uint32 {
	*s = sockaddr{}
	port := (*[2]byte)(unsafe.Pointer(&s.Port))
	binary.BigEndian.PutUint16(port[:], a.Port())
	if a.Addr().Is4() {
		v4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(s))
		v4.Family = unix.AF_INET
		v4.Addr = a.Addr().As4()
		return unix.SizeofSockaddrInet4
	}
	s.Family = unix.AF_INET6
	s.Addr = a.Addr().As16()
	if a.Addr().IsLinkLocalUnicast() || a.Addr().IsMulticast() {
		s.Scope_id = zone
	}
	return unix.SizeofSockaddrInet6
}

// decode returns the address without its zone.
func (s *sockaddr) decode() netip.AddrPort {
	port := binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&s.Port))[:])
	if s.Family == unix.AF_INET {
		v4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(s))
		return netip.AddrPortFrom(netip.AddrFrom4(v4.Addr), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16(s.Addr).Unmap(), port)
}
