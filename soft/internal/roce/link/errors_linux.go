package link

import (
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

const (
	// maxUnreachable bounds the reports kept for Unreachable, and the messages taken off the
	// error queue in one go.
	maxUnreachable = 64
	// errorRetries is how often a call is repeated that failed with an error that may belong
	// to an earlier packet.
	errorRetries = 3

	extendedErrorBytes = int(unsafe.Sizeof(unix.SockExtendedErr{}))
)

// errorQueue reads the ICMP messages that the kernel keeps for a socket (IP_RECVERR in ip(7)).
// While there are such messages, the socket polls as being in error. A call that sends or
// receives may then fail with the error of an earlier packet; such a call is repeated.
type errorQueue struct {
	k       *kernel
	pending atomic.Bool // there are reports

	mu      sync.Mutex
	reports []Refusal
	name    sockaddr
	quoted  [quotedBytes]byte
	iov     unix.Iovec
	control [32]uint64
	header  unix.Msghdr
	call    func(uintptr) // e.system, bound once

	taken []Refusal // used by the receiver
}

// open asks for the messages. The socket works without them, too.
func (e *errorQueue) open(k *kernel, v4 bool) {
	e.k = k
	e.call = e.system
	e.reports = make([]Refusal, 0, maxUnreachable)
	e.taken = make([]Refusal, 0, maxUnreachable)
	e.header.Name = (*byte)(unsafe.Pointer(&e.name))
	e.header.Control = (*byte)(unsafe.Pointer(&e.control))
	e.iov.Base = &e.quoted[0]
	e.iov.SetLen(len(e.quoted))
	e.header.Iov = &e.iov
	e.header.SetIovlen(1)
	if v4 {
		_ = unix.SetsockoptInt(k.sendSock, unix.IPPROTO_IP, unix.IP_RECVERR, 1)
	} else {
		_ = unix.SetsockoptInt(k.sendSock, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)
	}
}

// drain takes the messages off the queue. Any goroutine may call it.
func (e *errorQueue) drain() { _ = e.k.raw.Control(e.call) }

// system is called by drain; the socket cannot be closed meanwhile.
func (e *errorQueue) system(uintptr) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for range maxUnreachable {
		e.header.Namelen = uint32(unsafe.Sizeof(e.name))
		e.header.SetControllen(int(unsafe.Sizeof(e.control)))
		n, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(e.k.sendSock), uintptr(unsafe.Pointer(&e.header)), unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
		if errno != 0 {
			if e.k.sendSock != e.k.sock {
				// An error whose message found no room in the queue stays, and wakes each
				// wait, until SO_ERROR is read. A receive would read it, but nothing receives
				// from this socket.
				_, _ = unix.GetsockoptInt(e.k.sendSock, unix.SOL_SOCKET, unix.SO_ERROR)
			}
			return
		}
		report := e.unreachable()
		if report == 0 || len(e.reports) == maxUnreachable {
			continue
		}
		if clear(e.quoted[min(int(n), len(e.quoted)):]); binary.BigEndian.Uint32(e.quoted[4:])&0xffffff != wire.ManagementQPN {
			if report != unix.ECONNREFUSED { // routes may come back; the transport retries
				continue
			}
			clear(e.quoted[:]) // one report for all packets with data
		}
		if r := (Refusal{e.name.decode(), report, e.quoted}); !slices.Contains(e.reports, r) {
			e.reports = append(e.reports, r)
			e.pending.Store(true)
		}
	}
}

// unreachable returns Refusal.Errno if the message just read says that nothing listens at the address in
// name, or that its host cannot be reached; else it returns zero.
func (e *errorQueue) unreachable() syscall.Errno {
	if e.header.Namelen == 0 {
		return 0
	}
	all := unsafe.Slice((*byte)(unsafe.Pointer(&e.control)), unsafe.Sizeof(e.control))
	rest := all[:min(uint64(e.header.Controllen), uint64(len(all)))]
	for len(rest) >= unix.SizeofCmsghdr {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&rest[0]))
		if uint64(h.Len) < uint64(unix.SizeofCmsghdr) || uint64(h.Len) > uint64(len(rest)) {
			return 0
		}
		data := rest[unix.SizeofCmsghdr:h.Len]
		ours := h.Level == unix.SOL_IP && h.Type == unix.IP_RECVERR || h.Level == unix.SOL_IPV6 && h.Type == unix.IPV6_RECVERR
		if ours && len(data) >= extendedErrorBytes {
			x := (*unix.SockExtendedErr)(unsafe.Pointer(&data[0]))
			if x.Origin != unix.SO_EE_ORIGIN_ICMP && x.Origin != unix.SO_EE_ORIGIN_ICMP6 {
				return 0
			}
			switch errno := syscall.Errno(x.Errno); errno {
			case unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EACCES: // EACCES: prohibited, in IPv6
				return errno
			}
			return 0
		}
		rest = rest[min(unix.CmsgSpace(len(data)), len(rest)):]
	}
	return 0
}

// take returns the reports since the last call.
func (e *errorQueue) take() []Refusal {
	if !e.pending.Load() {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pending.Store(false)
	e.reports, e.taken = e.taken[:0], e.reports
	return e.taken
}
