package link

import (
	"fmt"
	"net"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// rawCallBytes is the size up to which a batch is sent by a raw system call: telling the
// scheduler of such a short call costs more than it gains.
const rawCallBytes = 16 << 10

type transmitter struct {
	k        *kernel
	zone     uint32
	headers  [maxMessages]mmsghdr
	names    [maxMessages]sockaddr
	controls [maxMessages]sendControl
	data     [maxMessages]unix.Iovec

	call    func(uintptr) // t.system, bound once
	next    int           // first message to send
	end     int
	rawCall bool
	count   int // messages sent by the call
	errno   unix.Errno

	sourceSize int // size of the control message with the source

	lastDst  netip.AddrPort
	lastFlow uint32 // flow label for lastDst
	lastName sockaddr
	nameSize uint32
}

func (t *transmitter) init(k *kernel, zone uint32) {
	t.k, t.zone = k, zone
	t.call = t.system
	for i := range t.headers {
		h := &t.headers[i].hdr
		h.Name = (*byte)(unsafe.Pointer(&t.names[i]))
		h.Iov = &t.data[i]
		h.SetIovlen(1)
		t.sourceSize = t.controls[i].init(k)
	}
}

// load fills in the headers of the messages.
func (t *transmitter) load(b *batch) {
	for i := range b.messageCount {
		m := &b.messages[i]
		if m.dst != t.lastDst || m.header.FlowLabel != t.lastFlow {
			t.nameSize = t.lastName.encode(m.dst, t.zone)
			t.lastDst, t.lastFlow = m.dst, m.header.FlowLabel
			if m.dst.Addr().Is6() {
				t.lastName.Flowinfo = m.header.flowInfo()
			}
		}
		t.names[i] = t.lastName
		h := &t.headers[i].hdr
		h.Namelen = t.nameSize
		t.data[i].Base = &b.arena[m.at]
		t.data[i].SetLen(m.bytes)
		control, size := t.controls[i].fill(m, t.sourceSize)
		h.Control = (*byte)(control)
		h.SetControllen(size)
	}
	t.rawCall = b.used <= rawCallBytes
}

// system makes the call for messages next to end.
func (t *transmitter) system(uintptr) {
	sock, headers, count := uintptr(t.k.sendSock), unsafe.Pointer(&t.headers[t.next]), uintptr(t.end-t.next)
	switch {
	case !t.k.batched:
		_, _, t.errno = unix.Syscall(unix.SYS_SENDMSG, sock, uintptr(headers), unix.MSG_DONTWAIT)
		count = 1
	case t.rawCall:
		count, _, t.errno = unix.RawSyscall6(unix.SYS_SENDMMSG, sock, uintptr(headers), count, unix.MSG_DONTWAIT, 0, 0)
	default:
		count, _, t.errno = unix.Syscall6(unix.SYS_SENDMMSG, sock, uintptr(headers), count, unix.MSG_DONTWAIT, 0, 0)
	}
	t.count = int(count)
}

func (k *kernel) send(b *batch) {
	t := &k.tx
	t.load(b)
	var blocked time.Time // since when the send buffer has been full
	retries := errorRetries
	for t.next, t.end = 0, b.messageCount; t.next < t.end; {
		if k.raw.Control(t.call) != nil {
			b.drop(t.next)
			b.fail(net.ErrClosed)
			return
		}
		switch t.errno {
		case 0:
			if t.next += t.count; t.next < t.end && k.batched {
				// The call stopped for the error of an earlier packet, or for lack of room.
				k.errors.drain()
			}
			retries = errorRetries
		case unix.EINTR:
		case unix.EAGAIN:
			if blocked.IsZero() {
				blocked = time.Now()
			}
			if !k.writable(until(blocked, sendTimeout)) {
				b.drop(t.next)
				return
			}
		case unix.ENOBUFS, unix.ENOMEM:
			k.dropRefused(b)
		default:
			if k.errors.drain(); retries > 0 {
				retries--
				continue
			}
			k.dropRefused(b)
			retries = errorRetries
		}
	}
}

// dropRefused drops the message that the kernel refused, and keeps the reason.
func (k *kernel) dropRefused(b *batch) {
	t := &k.tx
	m, errno := &b.messages[t.next], t.errno
	b.dropped += m.packets
	t.next++
	if errno == unix.ENOBUFS || errno == unix.ENOMEM {
		return
	}
	// Kernels before 6.14 return EINVAL, not EMSGSIZE, for a train whose packets exceed the
	// path MTU.
	if errno == unix.EMSGSIZE || errno == unix.EINVAL {
		packet := m.size + headerBytes(m.dst)
		if i, err := net.InterfaceByIndex(int(k.index)); err == nil && packet > i.MTU {
			b.fail(fmt.Errorf("link: send to %s: a packet of %d bytes exceeds the MTU of %s, %d; use a smaller RDMA path MTU: %w", m.dst, packet, i.Name, i.MTU, unix.EMSGSIZE))
			return
		}
	}
	if errno == unix.EINVAL && m.header.FlowLabel != 0 {
		b.fail(fmt.Errorf("link: send %d bytes to %s: the kernel refuses flow label %#x, as it does while a program on this machine has an exclusive flow label: %w", m.bytes, m.dst, m.header.FlowLabel, errno))
		return
	}
	if m.packets > 1 && (errno == unix.EIO || errno == unix.EINVAL) {
		k.segmentation.Store(false)
		b.maxSegments = 1
		b.fail(fmt.Errorf("link: send a train of %d packets to %s: %w (%w); packets are sent one by one from now on", m.packets, m.dst, ErrSegmentation, errno))
		return
	}
	b.fail(fmt.Errorf("link: send %d bytes to %s: %w", m.bytes, m.dst, errno))
}

// writable waits for room in the send buffer.
func (k *kernel) writable(timeout time.Duration) (ok bool) {
	err := k.raw.Control(func(uintptr) {
		fds := []unix.PollFd{{Fd: int32(k.sendSock), Events: unix.POLLOUT}}
		limit := unix.NsecToTimespec(timeout.Nanoseconds())
		n, err := unix.Ppoll(fds, &limit, nil)
		room := n > 0 && fds[0].Revents&unix.POLLOUT != 0
		ok = room || timeout > 0 && (n > 0 || err == unix.EINTR)
	})
	return ok && err == nil
}

func headerBytes(dst netip.AddrPort) int {
	const udp, ipv4, ipv6 = 8, 20, 40
	if dst.Addr().Is4() {
		return ipv4 + udp
	}
	return ipv6 + udp
}
