package local

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
)

// Messages of a connection after the handshake: their kind, and a number where needed.
const (
	messageWake     = 'w' // look at the rings
	messageExport   = 's' // with a file: export memory under a number
	messageImported = 'a' // the memory has been mapped
	messageForget   = 'f' // it will be freed
	messagePing     = 'p' // with a mark, which the reply repeats
	messagePong     = 'q'
	messageClose    = 'g' // the channel ends, but its process continues
	messageLen      = 5
	longestMessage  = 256
)

const (
	sharedLen = 2 * (controlLen + ringLen)
)

// connection is a channel's connection, and its shared memory.
type connection struct {
	conn   *net.UnixConn
	raw    syscall.RawConn
	memory []byte
	peer   int // process ID of the other end

	// Where the channel is watched, wake-ups are taken by the goroutine that waits for them (takeWakeups),
	// and Serve reads the other messages while serving is set.
	unwatch   func()
	serving   bool
	attention chan struct{} // holds a token when serving has been set, and after shutdown
	wakeups   wakeups
	took      bool             // takeWakeups has taken some
	take      func(fd uintptr) // l.takeWakeupsOf, bound once

	// The message being sent, so that sending needs no allocation.
	message [messageLen]byte
	rights  []byte
	result  error
	call    func(fd uintptr) // l.system, bound once
}

func newConnection(conn *net.UnixConn, peer int, memory []byte) (connection, error) {
	raw, err := conn.SyscallConn()
	return connection{conn: conn, raw: raw, memory: memory, peer: peer}, err
}

// send sends a message at once or not at all, and reports false if the peer's message queue is
// full. It does not report that the peer is gone; Serve does. The caller holds the lock of
// Serve.
func (l *connection) send(kind byte, number uint32, rights []byte) bool {
	if l.call == nil {
		l.call = l.system
	}
	l.message[0] = kind
	binary.LittleEndian.PutUint32(l.message[1:], number)
	l.rights = rights
	if err := l.raw.Control(l.call); err != nil {
		return false
	}
	return l.result == nil || l.result == unix.EPIPE || l.result == unix.ECONNRESET
}

func (l *connection) system(fd uintptr) {
	const flags = unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL
	if l.rights != nil {
		l.result = unix.Sendmsg(int(fd), l.message[:], l.rights, nil, flags)
		return
	}
	l.result = nil
	if _, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(&l.message)), messageLen, flags, 0, 0); errno != 0 {
		l.result = errno
	}
}

// wakeups is what takeWakeups looks at messages with.
type wakeups struct {
	header unix.Msghdr
	vector unix.Iovec
	data   [messageLen + 1]byte
}

// Watch makes ready be called by the goroutine that waits in the set, when the peer has sent a
// message. ready calls TakeWakeups. It is called before Serve.
func (c *Channel) Watch(set link.WaitSet, ready func()) error {
	l := &c.link
	w := &l.wakeups
	w.vector.Base = &w.data[0]
	w.vector.SetLen(len(w.data))
	w.header.Iov = &w.vector
	w.header.SetIovlen(1)
	l.attention, l.serving, l.take = make(chan struct{}, 1), true, l.takeWakeupsOf
	var err error
	failed := l.raw.Control(func(fd uintptr) {
		if err = set.Watch(int(fd), ready); err == nil {
			l.unwatch = func() { set.Unwatch(int(fd)) }
		}
	})
	return errors.Join(err, failed)
}

// TakeWakeups takes the wake-ups that have come, and reports whether there were any. Other messages
// are left to Serve. The caller holds the lock of Serve.
func (c *Channel) TakeWakeups() bool {
	c.link.took = false
	if !c.link.serving {
		_ = c.link.raw.Control(c.link.take)
	}
	return c.link.took
}

// maxWakeups is how many wake-ups are taken under the lock. A peer can send them without end.
const maxWakeups = 64

// takeWakeupsOf only reads messages that it has seen to have no files: see messageReader.system.
// After maxWakeups it leaves the others to Serve too, which reads them without the lock.
func (l *connection) takeWakeupsOf(fd uintptr) {
	w := &l.wakeups
	for taken := 0; taken < maxWakeups; {
		n, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&w.header)), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case errno == unix.EAGAIN:
			return
		case errno == unix.EINTR:
			continue
		case errno != 0 || n != messageLen || w.data[0] != messageWake || w.header.Flags&unix.MSG_CTRUNC != 0:
			l.leaveToServe()
			return
		}
		l.took = true
		taken++
		unix.RawSyscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&w.data)), messageLen, unix.MSG_DONTWAIT, 0, 0)
	}
	l.leaveToServe()
}

// leaveToServe leaves the next messages to Serve.
func (l *connection) leaveToServe() {
	l.serving = true
	l.serve()
}

// serve makes Serve read messages.
func (l *connection) serve() {
	select {
	case l.attention <- struct{}{}:
	default:
	}
}

// wake wakes the peer. If its message queue is full, the messages in it wake it.
func (l *connection) wake() { l.send(messageWake, 0, nil) }

func (l *connection) export(number uint32, m *Memory) bool {
	return l.send(messageExport, number, unix.UnixRights(int(m.file.Fd())))
}

func (l *connection) forget(number uint32) bool { return l.send(messageForget, number, nil) }

func (l *connection) ping(mark uint32) bool { return l.send(messagePing, mark, nil) }

// Serve receives the peer's messages until the connection ends. It calls wake after each,
// without the lock: a peer that finds the message queue full relies on the messages in it. It
// changes the channel with the lock held, which all callers of other methods hold. After Close
// it returns, with the delay that CloseConnection describes. Its error says why the connection
// ended. io.EOF: the peer has ended it; without a closing message from the peer, the error matches
// ErrCutOff too.
func (c *Channel) Serve(lock sync.Locker, wake func()) error {
	in, err := newMessageReader(c.link.conn)
	if err == nil && c.link.unwatch != nil {
		in.idle = func() error {
			lock.Lock()
			c.link.serving = false
			woken := c.TakeWakeups() // those that have come meanwhile
			lock.Unlock()
			if woken {
				wake()
			}
			<-c.link.attention
			return nil
		}
	}
	for err == nil {
		var b []byte
		if b, err = in.next(); err == nil {
			err = c.serve(lock, b, in.files)
			in.closeFiles()
			wake()
		}
	}
	if err == errPeerGone {
		err = fmt.Errorf("%w: %w", ErrCutOff, err)
	}
	return err
}

func (c *Channel) serve(lock sync.Locker, b []byte, files []int) error {
	if len(b) != messageLen {
		return fmt.Errorf("message of %d bytes: %w", len(b), ErrCorrupt)
	}
	number := binary.LittleEndian.Uint32(b[1:])
	switch kind := b[0]; {
	case kind == messageWake && len(files) == 0:
	case kind == messageExport && len(files) == 1:
		return c.importMemory(lock, number, files[0])
	case kind == messageImported && len(files) == 0:
		lock.Lock()
		c.acknowledged(number)
		lock.Unlock()
	case kind == messageForget && len(files) == 0:
		lock.Lock()
		defer lock.Unlock()
		if mem := c.imported.memories[number]; mem != nil {
			delete(c.imported.memories, number)
			c.unmap(mem)
		}
	case kind == messagePing && len(files) == 0:
		lock.Lock()
		c.link.send(messagePong, number, nil)
		lock.Unlock()
	case kind == messagePong && len(files) == 0:
		lock.Lock()
		defer lock.Unlock()
		return c.handlePong(number)
	case kind == messageClose && len(files) == 0:
		return fmt.Errorf("the peer closed the channel: %w", errPeerGone)
	default:
		return fmt.Errorf("message %q with %d files: %w", kind, len(files), ErrCorrupt)
	}
	return nil
}

// importMemory maps memory that the peer shows. If it cannot be mapped, it is left alone: the
// payload comes through the ring then.
func (c *Channel) importMemory(lock sync.Locker, number uint32, fd int) error {
	lock.Lock()
	known := number <= c.imported.last || number&unacknowledged != 0
	full := len(c.imported.memories) >= maxExports
	lock.Unlock()
	if known {
		return fmt.Errorf("memory %d is exported twice: %w", number, ErrCorrupt)
	}
	if full {
		return nil
	}
	mem, err := mapExport(fd)
	if errors.Is(err, ErrCorrupt) {
		return err
	}
	if err != nil {
		return nil
	}
	lock.Lock()
	defer lock.Unlock()
	switch {
	case c.imported.memories == nil: // closed meanwhile
		unmap(mem)
		return net.ErrClosed
	case !c.budget.reserve(c.link.peer, uint64(len(mem))):
		unmap(mem)
		return nil
	}
	c.imported.memories[number], c.imported.last = mem, number
	if !c.link.send(messageImported, number, nil) {
		return fmt.Errorf("acknowledge memory %d: %w", number, net.ErrClosed)
	}
	return nil
}

// unmap unmaps memory of the peer.
func (c *Channel) unmap(mem []byte) {
	c.budget.release(c.link.peer, uint64(len(mem)))
	unmap(mem)
}

// shutdown ends the connection and unmaps everything received through it. The file stays open
// until CloseConnection.
func (c *Channel) shutdown() {
	c.link.send(messageClose, 0, nil)
	if c.link.unwatch != nil {
		c.link.unwatch()
	}
	_ = c.link.conn.CloseRead()
	_ = c.link.conn.CloseWrite()
	_ = c.link.conn.SetDeadline(time.Unix(1, 0)) // Serve reads no more
	if c.link.unwatch != nil {
		c.link.serve()
	}
	for _, mem := range c.imported.memories {
		c.unmap(mem)
	}
	unmap(c.link.memory)
	c.link.memory = nil
}

// CloseConnection is called after Close and Serve, without the lock, and not for loops. Like
// Serve, it can take as long as the peer wants: a peer can send files that take long to close,
// such as a TCP socket with SO_LINGER and unsent data, and the last holder waits.
func (c *Channel) CloseConnection() { _ = c.link.conn.Close() }

// name returns the name of the socket at which a device listens.
func name(device Address) string { return "@verbena/local/" + device.String() }
