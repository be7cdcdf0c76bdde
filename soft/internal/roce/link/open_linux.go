package link

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

func open(cfg Config, zone int) (backend, netip.AddrPort, error) {
	if cfg.Portable {
		return openPortable(cfg, zone)
	}
	return openKernel(cfg, zone)
}

// setOptions fixes the identification and the flags of the IP header, which the invariant CRC
// covers, and requests buffer sizes. It also makes the socket ignore reports that a packet is
// too big for the path (IP_MTU_DISCOVER in ip(7)): any host can forge one, and the system
// would then send no packet of that length for ten minutes.
func setOptions(fd uintptr, cfg Config) error {
	s := int(fd)
	if cfg.Addr.Addr().Is4() {
		if err := unix.SetsockoptInt(s, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE); err != nil {
			return fmt.Errorf("set IP_MTU_DISCOVER: %w", err)
		}
	} else {
		if on, err := unix.GetsockoptInt(s, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY); err != nil || on == 0 { // not once it is bound
			if err := unix.SetsockoptInt(s, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
				return fmt.Errorf("set IPV6_V6ONLY: %w", err)
			}
		}
		if err := unix.SetsockoptInt(s, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE); err != nil {
			return fmt.Errorf("set IPV6_MTU_DISCOVER: %w", err)
		}
		// Adapters and rxe send RoCEv2 without a UDP checksum, which over IPv6
		// reaches only sockets that accept it (RFC 6936).
		if err := unix.SetsockoptInt(s, unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1); err != nil {
			return fmt.Errorf("set UDP_NO_CHECK6_RX: %w", err)
		}
	}
	if err := setHeaderDefaults(s, cfg.Addr.Addr().Is4()); err != nil {
		return err
	}
	setBuffer(s, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, cfg.SendBuffer)
	setBuffer(s, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, cfg.ReceiveBuffer)
	return nil
}

// setBuffer tries to exceed the administrator's limit, and otherwise accepts it.
func setBuffer(s, force, plain, size int) {
	if unix.SetsockoptInt(s, unix.SOL_SOCKET, force, size) != nil {
		_ = unix.SetsockoptInt(s, unix.SOL_SOCKET, plain, size)
	}
}

func receiveBuffer(fd uintptr) int {
	n, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		return 0
	}
	return n
}
