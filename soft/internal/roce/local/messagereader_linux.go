package local

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// messageReader receives the messages of a connection, without an allocation for each.
type messageReader struct {
	raw    syscall.RawConn
	header unix.Msghdr
	vector unix.Iovec
	data   [longestMessage]byte
	rights [64]byte
	read   func(fd uintptr) bool // i.system, bound once
	idle   func() error          // waits for the next message; nil: the runtime's poller does
	n      int
	errno  unix.Errno
	files  []int // of the last message; the receiver closes them
	reset  bool  // the peer has closed its end and left messages unread
}

func newMessageReader(conn *net.UnixConn) (*messageReader, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	i := &messageReader{raw: raw}
	i.read = i.system
	i.vector.Base = &i.data[0]
	i.vector.SetLen(len(i.data))
	i.header.Iov = &i.vector
	i.header.SetIovlen(1)
	i.header.Control = &i.rights[0]
	return i, nil
}

// system can take as long as the peer wants: recvmsg closes received files that do not fit,
// and closing a file can take long. So it is not a raw system call, which would block the
// scheduler.
func (i *messageReader) system(fd uintptr) bool {
	for {
		i.header.SetControllen(len(i.rights))
		n, _, errno := unix.Syscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&i.header)), unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		i.n, i.errno = int(n), errno
		if errno != unix.EINTR {
			return errno != unix.EAGAIN || i.idle != nil
		}
	}
}

// next waits for a message and returns it. The files that came with it are in i.files.
func (i *messageReader) next() ([]byte, error) {
	i.files = i.files[:0]
	err := i.raw.Read(i.read)
	for err == nil && i.errno == unix.EAGAIN {
		if err = i.idle(); err == nil {
			err = i.raw.Read(i.read)
		}
	}
	if err != nil {
		return nil, err
	}
	if i.errno == unix.ECONNRESET && !i.reset {
		i.reset = true // reported once, before the messages that are still queued
		return i.next()
	}
	switch n := int(i.header.Controllen); {
	case i.errno != 0:
		return nil, os.NewSyscallError("recvmsg", i.errno)
	case n > 0:
		i.files, err = parseRights(i.files, i.rights[:n])
	case i.n == 0:
		return nil, errPeerGone
	}
	if i.header.Flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = errors.Join(err, fmt.Errorf("message too long: %w", ErrCorrupt))
	}
	if err != nil {
		i.closeFiles()
		return nil, err
	}
	return i.data[:i.n], nil
}

func (i *messageReader) closeFiles() {
	for _, fd := range i.files {
		_ = unix.Close(fd)
	}
	i.files = i.files[:0]
}

func parseRights(files []int, control []byte) ([]int, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	for i := range messages {
		fds, failed := unix.ParseUnixRights(&messages[i])
		files = append(files, fds...)
		err = errors.Join(err, failed)
	}
	return files, err
}
