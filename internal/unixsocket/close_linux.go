package unixsocket

import (
	"net"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/quota"
)

// Close ends a connection, and closes its socket. If that can take long, it happens in the
// background. Only if a quarter of the files that the process may open are such sockets, Close
// waits.
func Close(conn *net.UnixConn) {
	user, empty := end(conn)
	if empty || !background.add(user, conn) {
		_ = conn.Close()
	}
}

// end ends a connection in both directions. It returns the peer's user, and whether the queue is
// empty: then it stays so, and closing the socket closes no files.
func end(conn *net.UnixConn) (user uint32, empty bool) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, true // it is closed
	}
	_ = raw.Control(func(fd uintptr) {
		socket := int(fd)
		if cred, err := unix.GetsockoptUcred(socket, unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			user = cred.Uid
		}
		_ = unix.Shutdown(socket, unix.SHUT_RDWR)
		// An empty message looks like the end. But it has credentials, for which there is no room here, so
		// that the system sets MSG_CTRUNC. Streams have no empty messages; they skip urgent data unless
		// it is to be in line.
		packets := conn.LocalAddr().Network() == "unixpacket"
		option := unix.SO_OOBINLINE
		if packets {
			option = unix.SO_PASSCRED
		}
		if err := unix.SetsockoptInt(socket, unix.SOL_SOCKET, option, 1); err != nil {
			return
		}
		var b [1]byte
		for range 2 { // the first call may report that the peer has left data unread
			n, _, flags, _, err := unix.Recvmsg(socket, b[:], nil, unix.MSG_PEEK|unix.MSG_DONTWAIT)
			if err == nil {
				empty = n == 0 && !(packets && flags&unix.MSG_CTRUNC != 0)
				return
			}
		}
	})
	return user, empty
}

const (
	// maxClosing bounds the sockets of a user that are being closed at a time, and maxThreads those of
	// all users: each takes a thread.
	maxClosing = 4
	maxThreads = 64
)

// background closes the sockets of this process that take long to close. There is one closer, since
// threads and file descriptors are the process's.
var background = closer{waiting: make(map[uint32][]*net.UnixConn)}

// closer closes sockets in the background. Each user has a queue, and the users share the threads, so
// that few users do not delay the others. They do not share open: a user beyond its share would make
// Close wait, and with it the next connections of all.
type closer struct {
	mu      sync.Mutex
	waiting map[uint32][]*net.UnixConn // by user
	open    int                        // sockets that are not closed yet
	threads quota.Places[uint32]
}

// add closes a socket in the background. It reports false if there are too many.
func (c *closer) add(user uint32, conn *net.UnixConn) bool {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if uint64(c.open) >= files.Cur/4 {
		return false
	}
	c.open++
	c.waiting[user] = append(c.waiting[user], conn)
	c.start(user)
	return true
}

// start starts to close the sockets of a user, as far as there is room. The lock is held.
func (c *closer) start(user uint32) {
	list := c.waiting[user]
	for len(list) > 0 && c.threads.Held(user) < maxClosing && c.threads.Fits(user, maxThreads) {
		c.threads.Take(user)
		go c.close(user, list[0])
		list = list[1:]
	}
	c.waiting[user] = list
	if len(list) == 0 {
		delete(c.waiting, user)
	}
}

// close closes a socket of a user, and starts to close others.
func (c *closer) close(user uint32, conn *net.UnixConn) {
	_ = conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.threads.Release(user)
	c.open--
	for other := range c.waiting {
		c.start(other)
	}
}
