package link

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"golang.org/x/sys/unix"
)

// wildcard returns the unspecified address of the family.
func (k *kernel) wildcard() netip.Addr {
	if k.v4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// openSendSocket opens the socket that packets leave by. It is bound at all addresses, so that no
// other socket can have its port at any of them.
func (k *kernel) openSendSocket() error {
	out, err := newSocketUDP(k.cfg)
	if err != nil {
		return err
	}
	k.sendSock = out
	if err := setOptions(uintptr(out), k.cfg); err != nil {
		return err
	}
	if err := k.bindSendSocket(); err != nil {
		return err
	}
	return Refuse(out)
}

// bindSendSocket binds a free port, starting at a random one.
func (k *kernel) bindSendSocket() error {
	r := k.cfg.SendPorts
	n := int(r.Last-r.First) + 1
	first := rand.IntN(n)
	for i := range n {
		port := r.First + uint16((first+i)%n)
		if err := bind(k.sendSock, netip.AddrPortFrom(k.wildcard(), port), 0); !errors.Is(err, unix.EADDRINUSE) {
			return err
		}
	}
	return errNoSendPort(r)
}

// shareSendSocket gives another socket at the same address a duplicate of the one that packets
// leave by.
func (k *kernel) shareSendSocket(other *kernel) error {
	if k.sendSock == k.sock {
		return nil
	}
	out, err := unix.FcntlInt(uintptr(k.sendSock), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("fcntl: %w", err)
	}
	other.sendSock = out
	return nil
}

func (k *kernel) sendPort() uint16 {
	if k.sendSock != k.sock {
		if addr, err := boundAddr(k.sendSock); err == nil {
			return addr.Port()
		}
	}
	return k.cfg.Addr.Port()
}

// checkAddress returns an error if this host does not have the address.
func (k *kernel) checkAddress() error {
	sock, err := newSocketUDP(k.cfg)
	if err != nil {
		return err
	}
	defer unix.Close(sock)
	return bind(sock, netip.AddrPortFrom(k.cfg.Addr.Addr(), 0), k.index)
}

// refuseGroups excludes packets to multicast groups that other sockets have joined.
func (k *kernel) refuseGroups() error {
	level, all := unix.IPPROTO_IP, unix.IP_MULTICAST_ALL
	if !k.v4 {
		level, all = unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_ALL
	}
	if err := unix.SetsockoptInt(k.sock, level, all, 0); err != nil && !errors.Is(err, unix.ENOPROTOOPT) {
		return fmt.Errorf("refuse packets to multicast groups: %w", err)
	}
	return nil
}
