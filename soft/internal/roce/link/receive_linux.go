package link

import (
	"fmt"
	"net"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	receiveMessages = 8
	receiveSize     = 1 << 16
	receiveSegments = 128 // the most that current kernels put into a train
)

type receiver struct {
	k         *kernel
	headers   [receiveMessages]mmsghdr
	vectors   [receiveMessages]unix.Iovec
	names     [receiveMessages]sockaddr
	controls  [receiveMessages]receiveControl
	buffers   [receiveMessages][]byte
	datagrams []Datagram
	used      int // headers that the last call wrote to
	want      int // messages that the next call receives at most
	burst     int // messages since the last call without any
	sock      int // the socket of the call

	call  func(uintptr) // r.system, bound once
	count int
	errno unix.Errno

	lastName sockaddr
	lastSrc  netip.AddrPort
}

func (r *receiver) init(k *kernel) {
	r.k = k
	r.call = r.system
	messages := receiveMessages
	if !k.batched {
		messages = 1
	}
	buffer := make([]byte, messages*receiveSize)
	for i := range messages {
		r.buffers[i] = buffer[i*receiveSize : (i+1)*receiveSize : (i+1)*receiveSize]
		r.vectors[i].Base = &r.buffers[i][0]
		r.vectors[i].SetLen(receiveSize)
		h := &r.headers[i].hdr
		h.Name = (*byte)(unsafe.Pointer(&r.names[i]))
		h.Iov = &r.vectors[i]
		h.SetIovlen(1)
		h.Control = (*byte)(unsafe.Pointer(&r.controls[i]))
	}
	segments := 1
	if k.coalescing {
		segments = receiveSegments
	}
	r.datagrams = make([]Datagram, 0, messages*segments)
	r.used, r.want = messages, 1
}

// system makes the call. It never blocks, so it bypasses the scheduler.
func (r *receiver) system(uintptr) {
	for i := range r.used {
		h := &r.headers[i].hdr
		h.Namelen = uint32(unsafe.Sizeof(r.names[i]))
		h.SetControllen(int(unsafe.Sizeof(r.controls[i])))
	}
	if r.k.batched {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(r.sock), uintptr(unsafe.Pointer(&r.headers)), uintptr(r.want), unix.MSG_DONTWAIT, 0, 0)
		r.count, r.errno = int(n), errno
	} else {
		n, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(r.sock), uintptr(unsafe.Pointer(&r.headers)), unix.MSG_DONTWAIT)
		r.headers[0].n = uint32(n)
		r.count, r.errno = 1, errno
	}
	if r.errno != 0 {
		r.count = 0
	}
	r.used = r.count
	r.setWant()
}

// setWant sets how many messages the next call receives at most. If they arrive singly it is
// one, since an unsuccessful look for a second one would delay the first.
func (r *receiver) setWant() {
	r.burst += r.count
	switch {
	case r.count == r.want:
		r.want = receiveMessages
	case r.count == 0 && r.burst > 0:
		if r.want = receiveMessages; r.burst == 1 {
			r.want = 1
		}
		r.burst = 0
	}
}

func (k *kernel) receive() ([]Datagram, error) {
	var list []Datagram
	var err error
	if k.second == nil {
		list, err = k.rx.receive(k.rx.datagrams[:0], k.sock)
	} else {
		list, err = k.second.receive(k)
	}
	if len(k.groups.members) > 0 && err == nil {
		list, err = k.groups.receive(list)
	}
	k.rx.datagrams = list
	if len(list) == 0 {
		k.came.Store(false)
	}
	// If packets leave by another socket, reports show only there.
	if len(list) == 0 && k.sendSock != k.sock {
		if k.empty++; k.empty%reportInterval == 0 {
			k.errors.drain()
		}
	}
	return list, err
}

// reportInterval is the number of empty receives after which receive looks for reports.
const reportInterval = 64

// receive appends what is queued in a socket, up to a batch.
func (r *receiver) receive(to []Datagram, sock int) ([]Datagram, error) {
	k := r.k
	r.sock = sock
	for try := 0; ; try++ {
		if k.raw.Control(r.call) != nil {
			return to, net.ErrClosed
		}
		if r.errno == 0 {
			break
		}
		if r.errno == unix.EAGAIN || r.errno == unix.EINTR {
			return to, nil
		}
		if k.errors.drain(); try == errorRetries {
			return to, fmt.Errorf("link: receive: %w", r.errno)
		}
	}
	for i := range r.count {
		h := &r.headers[i]
		data := r.buffers[i][:h.n]
		size, header := 0, Header{}
		if h.hdr.Controllen > 0 {
			size, header = r.controls[i].parse(uint64(h.hdr.Controllen))
		}
		if r.names[i] != r.lastName {
			r.lastName = r.names[i]
			r.lastSrc = r.lastName.decode()
		}
		to = split(to, Datagram{Src: r.lastSrc, Header: header}, data, size)
	}
	return to, nil
}
