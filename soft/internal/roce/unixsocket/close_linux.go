package unixsocket

import (
	"net"
	"sync"

	"golang.org/x/sys/unix"
)

// Close ends a connection, and closes its socket. If that can take long, it happens in the
// background. Only if a quarter of the files that the process may open are such sockets, Close
// waits.
func Close(conn *net.UnixConn) {
	user, empty := end(conn)
	if empty || !unclosed.add(user, conn) {
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
	// all users: each takes a thread. Users are apart, so that none waits for the files of another.
	maxClosing = 4
	maxThreads = 64
)

// unclosed are the sockets of this process that take long to close. There is one list, since
// threads and file descriptors are the process's.
var unclosed = sockets{users: make(map[uint32]*user)}

type sockets struct {
	mu      sync.Mutex
	users   map[uint32]*user
	sockets int
	threads int
}

// user is a user with sockets that take long to close.
type user struct {
	waiting []*net.UnixConn
	closing int
}

// add closes a socket in the background. It reports false if there are too many.
func (s *sockets) add(id uint32, conn *net.UnixConn) bool {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if uint64(s.sockets) >= files.Cur/4 {
		return false
	}
	s.sockets++
	u := s.users[id]
	if u == nil {
		u = new(user)
		s.users[id] = u
	}
	u.waiting = append(u.waiting, conn)
	s.start(u)
	return true
}

// start starts to close the sockets of a user, as far as there is room. The lock is held.
func (s *sockets) start(u *user) {
	if len(u.waiting) == 0 || u.closing == maxClosing || s.threads == maxThreads {
		return
	}
	conn := u.waiting[0]
	u.waiting = u.waiting[1:]
	u.closing++
	s.threads++
	go func() {
		_ = conn.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		u.closing--
		s.threads--
		s.sockets--
		for id, u := range s.users {
			s.start(u)
			if u.closing+len(u.waiting) == 0 {
				delete(s.users, id)
			}
		}
	}()
}
