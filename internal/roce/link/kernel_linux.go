package link

import (
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
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
//
// The socket itself is not in the runtime's poller: there every packet would
// wake a thread even while the program polls. The poller has an epoll
// descriptor, the gate, that is armed by wait only. The gate's reference count
// also keeps Close from pulling the socket from under a system call.
type kernel struct {
	sock int
	gate *os.File
	raw  syscall.RawConn // of the gate

	segmentation atomic.Bool // the sender clears it
	coalescing   bool
	batched      bool
	granted      int

	tx     transmitter
	rx     receiver
	errors errorQueue
	sleep  sleeper

	closed   atomic.Bool
	closing  sync.Once
	closeErr error
}

func openKernel(cfg Config, zone int) (backend, netip.AddrPort, error) {
	var none netip.AddrPort
	domain := unix.AF_INET
	if cfg.Addr.Addr().Is6() {
		domain = unix.AF_INET6
	}
	sock, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP)
	if err != nil {
		return nil, none, fmt.Errorf("socket: %w", err)
	}
	k := &kernel{sock: sock}
	bound, err := k.setUp(cfg, uint32(zone))
	if err != nil {
		unix.Close(sock)
		return nil, none, err
	}
	return k, bound, nil
}

func (k *kernel) setUp(cfg Config, zone uint32) (bound netip.AddrPort, err error) {
	if err := setOptions(uintptr(k.sock), cfg); err != nil {
		return bound, err
	}
	var name sockaddr
	size := name.encode(cfg.Addr, zone)
	if _, _, errno := unix.Syscall(unix.SYS_BIND, uintptr(k.sock), uintptr(unsafe.Pointer(&name)), uintptr(size)); errno != 0 {
		return bound, fmt.Errorf("bind: %w", errno)
	}
	length := uint32(unsafe.Sizeof(name))
	if _, _, errno := unix.Syscall(unix.SYS_GETSOCKNAME, uintptr(k.sock), uintptr(unsafe.Pointer(&name)), uintptr(unsafe.Pointer(&length))); errno != 0 {
		return bound, fmt.Errorf("getsockname: %w", errno)
	}
	k.probe(cfg)
	k.granted = receiveBuffer(uintptr(k.sock))
	k.tx.init(k, zone)
	k.rx.init(k)
	k.errors.open(k, cfg.Addr.Addr().Is4())
	return name.decode(), k.openGate()
}

// probe finds out what the kernel has.
func (k *kernel) probe(cfg Config) {
	if !cfg.DisableSegmentation {
		_, err := unix.GetsockoptInt(k.sock, unix.SOL_UDP, unix.UDP_SEGMENT)
		k.segmentation.Store(err == nil)
	}
	if !cfg.DisableCoalescing {
		k.coalescing = unix.SetsockoptInt(k.sock, unix.SOL_UDP, unix.UDP_GRO, 1) == nil
	}
	if !cfg.DisableBatch {
		// With no messages both calls do nothing, where they exist and are allowed.
		var none mmsghdr
		_, _, send := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(k.sock), uintptr(unsafe.Pointer(&none)), 0, 0, 0, 0)
		_, _, receive := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(k.sock), uintptr(unsafe.Pointer(&none)), 0, unix.MSG_DONTWAIT, 0, 0)
		k.batched = send == 0 && receive == 0
	}
}

func (k *kernel) features() Features {
	f := Features{
		Segmentation:  k.segmentation.Load(),
		Coalescing:    k.coalescing,
		BatchReceive:  k.batched,
		MaxSegments:   1,
		ReceiveBuffer: k.granted,
	}
	if f.Segmentation {
		f.MaxSegments = maxSegments
	}
	return f
}

func (k *kernel) unreachable() []netip.AddrPort { return k.errors.take() }

func (k *kernel) close() error {
	k.closing.Do(func() {
		k.closed.Store(true)
		// Returns when no system call uses the socket any more.
		k.closeErr = k.gate.Close()
		if err := unix.Close(k.sock); err != nil {
			k.closeErr = fmt.Errorf("link: close: %w", err)
		}
	})
	return k.closeErr
}

// until is what is left of a duration since start, never negative.
func until(start time.Time, d time.Duration) time.Duration {
	return max(0, d-time.Since(start))
}
