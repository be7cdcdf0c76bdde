package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// groups are the multicast groups that a socket has joined. A socket bound to the address of a
// host receives no packets for a group. So each group has its own socket, bound to the group's
// address; sockets of other devices and processes may be bound to it too. They are read
// through one epoll descriptor, so that groups without traffic cost nothing.
type groups struct {
	k   *kernel
	set atomic.Int32 // the epoll descriptor; zero: none yet

	// Used by the receiver; the mutex excludes close.
	mu      sync.Mutex
	closed  bool
	members map[netip.AddrPort]*member
	bySock  map[int32]*member
	rx      *receiver
	event   unix.EpollEvent
	ready   *member
	call    func(uintptr) // g.system, bound once
}

type member struct {
	group netip.AddrPort
	sock  int
}

func (k *kernel) join(group netip.AddrPort) error {
	g := &k.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return net.ErrClosed
	}
	if k.noGroups != nil {
		return k.noGroups
	}
	if g.members[group] != nil {
		return nil
	}
	if err := g.prepare(); err != nil {
		return err
	}
	sock, err := k.groupSocket(group)
	if err != nil {
		return err
	}
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(sock)}
	if err := unix.EpollCtl(int(g.set.Load()), unix.EPOLL_CTL_ADD, sock, &event); err != nil {
		unix.Close(sock)
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	m := &member{group: group, sock: sock}
	g.members[group], g.bySock[int32(sock)] = m, m
	return nil
}

// prepare sets up what the first group needs.
func (g *groups) prepare() error {
	if g.members != nil {
		return nil
	}
	set, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("epoll_create1: %w", err)
	}
	if err := g.k.set.add(&setMember{fd: set, socket: g.k, ready: g.k.ready}, 0); err != nil {
		unix.Close(set)
		return err
	}
	g.call = g.system
	g.rx = &receiver{}
	g.rx.init(g.k)
	g.members, g.bySock = make(map[netip.AddrPort]*member), make(map[int32]*member)
	g.set.Store(int32(set))
	return nil
}

// groupSocket opens the socket for a group.
func (k *kernel) groupSocket(group netip.AddrPort) (sock int, err error) {
	domain := unix.AF_INET
	if !k.v4 {
		domain = unix.AF_INET6
	}
	if sock, err = unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP); err != nil {
		return 0, fmt.Errorf("socket: %w", err)
	}
	if err = k.setUpGroup(sock, group); err != nil {
		unix.Close(sock)
		return 0, err
	}
	return sock, nil
}

func (k *kernel) setUpGroup(sock int, group netip.AddrPort) error {
	if err := setOptions(uintptr(sock), k.cfg); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(sock, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return fmt.Errorf("set SO_REUSEADDR: %w", err)
	}
	// Exclude groups that other programs have joined on other interfaces.
	level, all := unix.IPPROTO_IP, unix.IP_MULTICAST_ALL
	if !k.v4 {
		level, all = unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_ALL
	}
	if err := unix.SetsockoptInt(sock, level, all, 0); err != nil && !errors.Is(err, unix.ENOPROTOOPT) {
		return fmt.Errorf("receive from one interface only: %w", err)
	}
	var name sockaddr
	size := name.encode(group, k.index)
	if _, _, errno := unix.Syscall(unix.SYS_BIND, uintptr(sock), uintptr(unsafe.Pointer(&name)), uintptr(size)); errno != 0 {
		return fmt.Errorf("bind: %w", errno)
	}
	var err error
	if k.v4 {
		err = unix.SetsockoptIPMreqn(sock, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP, &unix.IPMreqn{Multiaddr: group.Addr().As4(), Ifindex: int32(k.index)})
	} else {
		err = unix.SetsockoptIPv6Mreq(sock, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, &unix.IPv6Mreq{Multiaddr: group.Addr().As16(), Interface: k.index})
	}
	if err != nil {
		return fmt.Errorf("join on interface %d: %w", k.index, err)
	}
	if k.coalescing {
		_ = unix.SetsockoptInt(sock, unix.SOL_UDP, unix.UDP_GRO, 1)
	}
	return receiveHeaders(sock, k.v4, true)
}

func (k *kernel) leave(group netip.AddrPort) error {
	g := &k.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	m := g.members[group]
	if m == nil {
		return nil
	}
	delete(g.members, group)
	delete(g.bySock, int32(m.sock))
	return unix.Close(m.sock) // also leaves the group, and the epoll descriptor
}

// receive appends the packets queued at one group's socket that has some. The next calls serve
// the other groups.
func (g *groups) receive(to []Datagram) ([]Datagram, error) {
	g.ready = nil
	if g.k.raw.Control(g.call) != nil {
		return to, net.ErrClosed
	}
	if g.ready == nil {
		return to, nil
	}
	first := len(to)
	to, err := g.rx.receive(to, g.ready.sock)
	for i := range to[first:] {
		to[first+i].Group = g.ready.group.Addr()
	}
	return to, err
}

// system finds a group with packets.
func (g *groups) system(uintptr) {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(g.set.Load()), uintptr(unsafe.Pointer(&g.event)), 1, 0, 0, 0)
	if errno == 0 && n > 0 {
		g.ready = g.bySock[g.event.Fd]
	}
}

// close is called when no system call uses the descriptors any more.
func (g *groups) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for _, m := range g.members {
		unix.Close(m.sock)
	}
	if set := g.set.Load(); set != 0 {
		unix.Close(int(set))
	}
}

// checkRoute looks up the route with a socket that is bound and connected in the same way.
func (k *kernel) checkRoute(to netip.AddrPort) error {
	domain := unix.AF_INET
	if !k.v4 {
		domain = unix.AF_INET6
	}
	sock, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(sock)
	if k.index != 0 {
		if err := k.setMulticastInterface(sock); err != nil {
			return err
		}
	}
	var name sockaddr
	for _, step := range []struct {
		call uintptr
		what string
		addr netip.AddrPort
	}{{unix.SYS_BIND, "bind", netip.AddrPortFrom(k.cfg.Addr.Addr(), 0)}, {unix.SYS_CONNECT, "connect", to}} {
		size := name.encode(step.addr, k.index)
		if _, _, errno := unix.Syscall(step.call, uintptr(sock), uintptr(unsafe.Pointer(&name)), uintptr(size)); errno != 0 {
			return fmt.Errorf("%s: %w", step.what, errno)
		}
	}
	return nil
}

// setMulticastInterface sends packets to groups through the interface with the socket's
// address.
func (k *kernel) setMulticastInterface(sock int) error {
	var err error
	if k.v4 {
		err = unix.SetsockoptIPMreqn(sock, unix.IPPROTO_IP, unix.IP_MULTICAST_IF, &unix.IPMreqn{Ifindex: int32(k.index)})
	} else {
		err = unix.SetsockoptInt(sock, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, int(k.index))
	}
	if err != nil {
		return fmt.Errorf("choose interface %d for multicast: %w", k.index, err)
	}
	return nil
}
