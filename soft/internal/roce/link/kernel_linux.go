package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mmsghdr is struct mmsghdr of sendmmsg(2) and recvmmsg(2).
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
}

// kernel is the Linux socket.
type kernel struct {
	sock     int
	sendSock int // the socket that packets leave by: sock, or a separate one
	v4       bool
	cfg      Config
	// index is the index of the network interface with the socket's address; zero: unknown.
	index    uint32
	set      *epollSet
	ownsSet  bool        // close closes it
	raw      systemCalls // that use the sockets
	came     atomic.Bool // a wait has ended for the socket, and receive has not found it empty since
	unwanted atomic.Bool // packets do not end a wait

	segmentation  atomic.Bool // the sender clears it
	coalescing    bool
	batched       bool
	receiveBuffer int

	second *secondSocket // nil: none

	// empty counts calls of receive that found nothing.
	empty uint8

	tx     transmitter
	rx     receiver
	errors errorQueue
	groups groups
	drops  dropCount

	// noGroups says why no groups can be joined; nil: they can.
	noGroups error

	closing  sync.Once
	closeErr error
}

func openKernel(cfg Config, zone int) (backend, netip.AddrPort, error) {
	var none netip.AddrPort
	sock, err := cfg.Bound, error(nil)
	if sock == 0 {
		sock, err = newSocketUDP(cfg)
	}
	if err != nil {
		return nil, none, err
	}
	k := &kernel{sock: sock, sendSock: sock, cfg: cfg, v4: cfg.Addr.Addr().Is4(), index: uint32(zone)}
	k.groups.k = k
	if k.index == 0 {
		k.index = interfaceOf(cfg.Addr.Addr())
	}
	bound, err := k.setUp(cfg)
	if err != nil {
		k.closeSockets()
		return nil, none, err
	}
	return k, bound, nil
}

// newSocketUDP makes a socket of the address's family.
func newSocketUDP(cfg Config) (sock int, err error) {
	domain := unix.AF_INET
	if cfg.Addr.Addr().Is6() {
		domain = unix.AF_INET6
	}
	if sock, err = unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP); err != nil {
		return 0, fmt.Errorf("socket: %w", err)
	}
	return sock, nil
}

// closeSockets closes the sockets for receiving and sending.
func (k *kernel) closeSockets() (err error) {
	if k.second != nil {
		err = unix.Close(k.second.sock)
	}
	if k.sendSock != k.sock {
		err = errors.Join(err, unix.Close(k.sendSock))
	}
	return errors.Join(err, unix.Close(k.sock))
}

func (k *kernel) setUp(cfg Config) (bound netip.AddrPort, err error) {
	if cfg.Bound != 0 {
		err = prepareBound(k.sock, cfg)
		k.drops.begin(k.sock)
	} else {
		err = k.bindNew(cfg)
	}
	if err != nil {
		return bound, err
	}
	at, err := boundAddr(k.sock)
	if err != nil {
		return bound, err
	}
	k.cfg.Addr = netip.AddrPortFrom(cfg.Addr.Addr(), at.Port())
	switch {
	case cfg.share != nil:
		err = cfg.share.(*kernel).shareSendSocket(k)
	case cfg.SendPorts != (PortRange{}):
		err = k.openSendSocket()
	}
	if err != nil {
		return bound, err
	}
	k.probe(cfg)
	k.receiveBuffer = receiveBuffer(uintptr(k.sock))
	k.tx.init(k, k.index)
	k.rx.init(k)
	if k.index != 0 {
		switch err := k.setMulticastInterface(k.sendSock); {
		case errors.Is(err, unix.ENOPROTOOPT): // as under qemu-user
			k.noGroups = fmt.Errorf("%w: %w", err, errors.ErrUnsupported)
		case err != nil:
			return bound, err
		}
	}
	k.errors.open(k, cfg.Addr.Addr().Is4())
	return k.cfg.Addr, k.joinSet()
}

// bindNew binds a new socket.
func (k *kernel) bindNew(cfg Config) error {
	if err := setOptions(uintptr(k.sock), cfg); err != nil {
		return err
	}
	if cfg.share != nil {
		if err := setReusePort(k.sock); err != nil {
			return err
		}
	}
	at := cfg.Addr
	if cfg.Exclusive {
		if err := k.checkAddress(); err != nil {
			return err
		}
		at = netip.AddrPortFrom(k.wildcard(), at.Port())
		if err := k.refuseGroups(); err != nil {
			return err
		}
	}
	return bind(k.sock, at, k.index)
}

// bind binds a socket to an address.
func bind(sock int, to netip.AddrPort, zone uint32) error {
	var name sockaddr
	size := name.encode(to, zone)
	if _, _, errno := unix.Syscall(unix.SYS_BIND, uintptr(sock), uintptr(unsafe.Pointer(&name)), uintptr(size)); errno != 0 {
		return fmt.Errorf("bind: %w", errno)
	}
	return nil
}

// boundAddr returns the address and port of a socket. The zone of a link-local address is the index of its
// interface.
func boundAddr(sock int) (netip.AddrPort, error) {
	var name sockaddr
	length := uint32(unsafe.Sizeof(name))
	if _, _, errno := unix.Syscall(unix.SYS_GETSOCKNAME, uintptr(sock), uintptr(unsafe.Pointer(&name)), uintptr(unsafe.Pointer(&length))); errno != 0 {
		return netip.AddrPort{}, fmt.Errorf("getsockname: %w", errno)
	}
	at := name.decode()
	if name.Scope_id != 0 {
		at = netip.AddrPortFrom(at.Addr().WithZone(strconv.FormatUint(uint64(name.Scope_id), 10)), at.Port())
	}
	return at, nil
}

// probe finds out which features the kernel has.
func (k *kernel) probe(cfg Config) {
	if !cfg.DisableSegmentation {
		_, err := unix.GetsockoptInt(k.sendSock, unix.SOL_UDP, unix.UDP_SEGMENT)
		k.segmentation.Store(err == nil)
	}
	if !cfg.DisableCoalescing {
		k.coalescing = unix.SetsockoptInt(k.sock, unix.SOL_UDP, unix.UDP_GRO, 1) == nil
	}
	if !cfg.DisableBatch {
		// With no messages both calls do nothing, and succeed where they exist and are
		// allowed.
		var none mmsghdr
		_, _, send := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(k.sendSock), uintptr(unsafe.Pointer(&none)), 0, 0, 0, 0)
		_, _, receive := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(k.sock), uintptr(unsafe.Pointer(&none)), 0, unix.MSG_DONTWAIT, 0, 0)
		k.batched = send == 0 && receive == 0
	}
}

func (k *kernel) features() Features {
	f := Features{
		Segmentation:  k.segmentation.Load(),
		Coalescing:    k.coalescing,
		BatchReceive:  k.batched,
		Groups:        k.noGroups == nil,
		MaxSegments:   1,
		ReceiveBuffer: k.receiveBuffer,
	}
	if f.Segmentation {
		f.MaxSegments = maxSegments
	}
	return f
}

func (k *kernel) receiveHeaders(on bool) (err error) {
	if k.raw.Control(func(uintptr) {
		err = k.receivers(func(sock int) error { return receiveHeaders(sock, k.v4, on) })
	}) != nil {
		return net.ErrClosed
	}
	return err
}

func (k *kernel) unreachable() []Refusal { return k.errors.take() }

// joinSet puts the sockets into their wait set.
func (k *kernel) joinSet() (err error) {
	switch set := k.cfg.WaitSet.(type) {
	case nil:
		if k.set, err = newEpollSet(); err != nil {
			return err
		}
		k.ownsSet = true
	case *epollSet:
		k.set = set
	default:
		return fmt.Errorf("the wait set is not for sockets of the system: %w", errors.ErrUnsupported)
	}
	err = k.set.add(&setMember{fd: k.sock, socket: k, ready: k.ready}, 0)
	if err == nil && k.sendSock != k.sock {
		// The system shows its errors without being asked.
		err = k.set.add(&setMember{fd: k.sendSock, ready: k.ready}, 0)
	}
	if err != nil {
		k.leaveSet()
	}
	return err
}

func (k *kernel) leaveSet() {
	k.set.remove(k.sock)
	k.set.remove(k.sendSock)
	if k.second != nil {
		k.set.remove(k.second.sock)
	}
	if set := k.groups.set.Load(); set != 0 {
		k.set.remove(int(set))
	}
	if k.ownsSet {
		_ = k.set.Close()
	}
}

// ready is called by the goroutine whose wait has ended for the socket.
func (k *kernel) ready(events uint32) {
	if events&unix.EPOLLERR != 0 {
		k.errors.drain()
	}
	k.came.Store(true)
}

func (k *kernel) ended() bool { return k.came.Load() }

func (k *kernel) endsWait(on bool) { k.unwanted.Store(!on) }

func (k *kernel) waitSet() WaitSet { return k.set }

// systemCalls keeps the sockets open during system calls.
type systemCalls struct {
	mu    sync.RWMutex
	ended bool
}

// Control calls f, unless the sockets are closed.
func (c *systemCalls) Control(f func(uintptr)) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.ended {
		return net.ErrClosed
	}
	f(0)
	return nil
}

// end returns when no system call uses the sockets any more.
func (c *systemCalls) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
}

func (k *kernel) close() error {
	k.closing.Do(func() {
		k.leaveSet()
		k.raw.end()
		k.groups.close()
		if err := k.closeSockets(); err != nil {
			k.closeErr = fmt.Errorf("link: close: %w", err)
		}
	})
	return k.closeErr
}

// interfaceOf returns the index of the network interface that has an address, or zero.
func interfaceOf(addr netip.Addr) uint32 {
	list, err := net.Interfaces()
	if err != nil {
		return 0
	}
	for _, i := range list {
		addrs, _ := i.Addrs()
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok {
				own, _ := netip.AddrFromSlice(n.IP)
				// All of 127.0.0.0/8 is on the loopback interface.
				if own.Unmap() == addr || addr.IsLoopback() && addr.Is4() && i.Flags&net.FlagLoopback != 0 {
					return uint32(i.Index)
				}
			}
		}
	}
	return 0
}

// until returns what is left of a duration since start, never negative.
func until(start time.Time, d time.Duration) time.Duration {
	return max(0, d-time.Since(start))
}
