package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/closers"
	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/unixsocket"
	"github.com/verbena-rdma/verbena/verbs"
)

// Complete: every listener of this machine is registered.
const Complete = true

// closeTimeout bounds how long other processes can delay Close.
const closeTimeout = time.Second

// Entries are the entries of one listener.
type Entries struct {
	sockets []*socket
	serving *sync.WaitGroup // goroutines that serve the sockets and their clients
}

// socket is the socket of an entry.
type socket struct {
	*net.UnixListener
	closing bool // guarded by clients.mu
}

// Add registers the device that listens on an address and port. It fails with verbs.ErrInUse
// if another one is registered.
func (e *Entries) Add(space Space, addr, device netip.AddrPort) error {
	l, err := unixsocket.Listen("unix", name(space, addr))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return verbs.ErrInUse
	case err != nil:
		return err
	}
	s := &socket{UnixListener: l}
	e.sockets = append(e.sockets, s)
	if e.serving == nil {
		e.serving = new(sync.WaitGroup)
	}
	serving, entry := e.serving, []byte(device.String())
	serving.Go(func() {
		unixsocket.Serve(l, func(conn *net.UnixConn) {
			c, ok := kept.add(s, conn)
			if !ok {
				unixsocket.Close(conn) // the client asks again
				return
			}
			_, _ = conn.Write(entry) // it does not wait, since there is room for an entry
			serving.Go(func() { kept.closeAtEnd(c) })
		})
	})
	return nil
}

// Close removes the entries. Clients know that an entry no longer holds before its name is free. Close
// waits for at most closeTimeout, and continues in the background: before Linux 6.16, clients that have
// not been accepted can have sent files that take long to close.
func (e *Entries) Close() {
	if e.serving == nil {
		return
	}
	serving := e.serving
	for _, s := range e.sockets {
		serving.Go(func() { kept.close(s) })
	}
	e.sockets, e.serving = nil, nil
	closers.Wait(closeTimeout, serving.Wait)
}

// maxKept is how many connections of clients the entries of this process keep open together. While one
// is open, its client may take it that the entry holds. The oldest is closed for the next.
const maxKept = 64

// kept are the connections of clients of this process's entries. There is one list, since file
// descriptors are the process's.
var kept clients

type clients struct {
	mu   sync.Mutex
	list fifo.List[*client] // the oldest first
}

// client is a connection of a client. Whoever takes it out of the list closes it.
type client struct {
	fifo.Node[*client]
	conn   *net.UnixConn
	socket *socket
}

// add keeps a connection that a socket has accepted. It reports false if the socket is being closed.
func (k *clients) add(s *socket, conn *net.UnixConn) (c *client, ok bool) {
	c = &client{conn: conn, socket: s}
	c.Value = c
	var oldest *fifo.Node[*client]
	k.mu.Lock()
	if ok = !s.closing; ok {
		if k.list.Len() == maxKept {
			oldest = k.list.Pop()
		}
		k.list.Push(&c.Node)
	}
	k.mu.Unlock()
	if oldest != nil {
		unixsocket.Close(oldest.Value.conn)
	}
	return c, ok
}

// closeAtEnd closes a connection as soon as its client ends it, or sends something.
func (k *clients) closeAtEnd(c *client) {
	if raw, err := c.conn.SyscallConn(); err == nil {
		_ = raw.Read(func(fd uintptr) (done bool) { return !isQuiet(fd) })
	}
	k.mu.Lock()
	own := k.list.Remove(&c.Node)
	k.mu.Unlock()
	if own {
		unixsocket.Close(c.conn)
	}
}

// close closes a socket and its connections. The clients know first: afterwards the name can belong to
// another process.
func (k *clients) close(s *socket) {
	var list []*client
	k.mu.Lock()
	s.closing = true
	for _, c := range k.list.Values() {
		if c.socket == s {
			k.list.Remove(&c.Node)
			list = append(list, c)
		}
	}
	k.mu.Unlock()
	for _, c := range list {
		_ = c.conn.CloseWrite() // it does not wait
	}
	_ = s.Close()
	for _, c := range list {
		unixsocket.Close(c.conn)
	}
}

// Find returns the address and UDP port of the device that listens on an address and port, if
// it is a software device of this machine. The error is ErrNotRegistered if there is none; any
// other error says why Find does not know. It matches ErrNoResponse if the other process does not
// respond until the context ends, has too many clients, or closes connections without an answer.
func Find(ctx context.Context, space Space, addr netip.AddrPort) (device netip.AddrPort, err error) {
	device, conn, err := findConn(ctx, space, addr)
	if conn != nil {
		unixsocket.Close(conn)
	}
	return device, err
}

// findConn is Find. It also returns the connection, which the other process closes when the entry
// is removed, or earlier.
func findConn(ctx context.Context, space Space, addr netip.AddrPort) (device netip.AddrPort, conn *net.UnixConn, err error) {
	for range maxTries {
		if device, conn, err = find(ctx, space, addr); err != errNoAnswer || ctx.Err() != nil {
			break
		}
		time.Sleep(time.Millisecond) // the process may be about to close its socket
	}
	if err != nil && err != ErrNotRegistered {
		err = fmt.Errorf("query the process that listens on %v: %w", addr, err)
	}
	return device, conn, err
}

// maxTries bounds the connections of one Find that end without an answer.
const maxTries = 10

func find(ctx context.Context, space Space, addr netip.AddrPort) (device netip.AddrPort, conn *net.UnixConn, err error) {
	conn, err = unixsocket.Dial(ctx, "unix", name(space, addr))
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return device, nil, ErrNotRegistered
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled): // too many clients wait already
		return device, nil, errStalled
	case err != nil:
		return device, nil, err
	}
	if device, err = ask(ctx, conn, addr); err != nil {
		unixsocket.Close(conn)
		conn = nil
	}
	return device, conn, err
}

// ask reads an entry for an address.
func ask(ctx context.Context, conn *net.UnixConn, addr netip.AddrPort) (device netip.AddrPort, err error) {
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	text, err := readEntry(conn)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return device, errStalled
	case errors.Is(err, syscall.ECONNRESET), err == nil && len(text) == 0:
		return device, errNoAnswer
	case err != nil:
		return device, err
	}
	device, err = netip.ParseAddrPort(string(text))
	if err != nil || !plausible(addr.Addr().Unmap(), device) {
		return netip.AddrPort{}, fmt.Errorf("the process is not a software device: it responded %.60q", text)
	}
	return device, nil
}

// Known are entries that this process has found, with connections to their sockets: an entry holds
// as long as the other process keeps the connection open, but at most for maxAge. So a program that
// dials a listener again and again asks once a second. The bound is for processes that give up the
// name and keep the connection, and it frees the file and the goroutine that a connection takes in the
// other process. The zero value is empty. All methods may be called from any goroutine.
type Known struct {
	mu      sync.Mutex
	entries map[string]knownEntry // by the names of the sockets
	closed  bool
	maxAge  time.Duration // for tests; 0: the constant
}

type knownEntry struct {
	device netip.AddrPort
	conn   *net.UnixConn
	asked  time.Time   // the other process had the name after that
	expiry *time.Timer // late, if this process has been stopped
}

const (
	maxKnown = 32          // how many entries a Known keeps
	maxAge   = time.Second // for how long they hold
)

// Find is the function Find. It keeps what it has found.
func (k *Known) Find(ctx context.Context, space Space, addr netip.AddrPort) (device netip.AddrPort, err error) {
	asked := time.Now()
	device, conn, err := findConn(ctx, space, addr)
	key := name(space, addr)
	var old []*net.UnixConn
	k.mu.Lock()
	forget := func(key string) {
		if e, ok := k.entries[key]; ok {
			e.expiry.Stop()
			delete(k.entries, key)
			old = append(old, e.conn)
		}
	}
	forget(key)
	for other := range k.entries {
		if conn == nil || len(k.entries) < maxKnown {
			break
		}
		forget(other)
	}
	switch {
	case conn == nil:
	case k.closed:
		old = append(old, conn)
	default:
		if k.entries == nil {
			k.entries = make(map[string]knownEntry)
		}
		expiry := time.AfterFunc(k.age(), func() { k.expire(key, conn) })
		k.entries[key] = knownEntry{device, conn, asked, expiry}
	}
	k.mu.Unlock()
	closeAll(old)
	return device, err
}

func (k *Known) age() time.Duration { return cmp.Or(k.maxAge, maxAge) }

// expire forgets an entry, unless it has been replaced.
func (k *Known) expire(key string, conn *net.UnixConn) {
	k.mu.Lock()
	current := k.entries[key].conn == conn
	if current {
		delete(k.entries, key)
	}
	k.mu.Unlock()
	if current {
		unixsocket.Close(conn)
	}
}

// closeAll closes connections. No lock is held, since it can wait for the other processes.
func closeAll(list []*net.UnixConn) {
	for _, conn := range list {
		unixsocket.Close(conn)
	}
}

// Look returns what Find has found, if it still holds. It does not wait.
func (k *Known) Look(space Space, addr netip.AddrPort) (device netip.AddrPort, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e, ok := k.entries[name(space, addr)]
	if !ok || time.Since(e.asked) >= k.age() || !isOpen(e.conn) {
		return netip.AddrPort{}, false
	}
	return e.device, true
}

// isOpen reports whether the other process has neither closed the connection nor sent anything.
func isOpen(conn *net.UnixConn) (open bool) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) { open = isQuiet(fd) })
	return open
}

// isQuiet is isOpen for a file descriptor.
func isQuiet(fd uintptr) bool {
	for {
		_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if err != unix.EINTR {
			return err == unix.EAGAIN
		}
	}
}

// Close forgets all, now and what is found later.
func (k *Known) Close() {
	k.mu.Lock()
	k.closed = true
	var old []*net.UnixConn
	for _, e := range k.entries {
		e.expiry.Stop()
		old = append(old, e.conn)
	}
	clear(k.entries)
	k.mu.Unlock()
	closeAll(old)
}

// readEntry receives an entry, which is one write. Before Linux 6.16 there can be files with it,
// which reading would close in this thread; these stay in the queue, for unixsocket.Close.
func readEntry(conn *net.UnixConn) (text []byte, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	b := make([]byte, maxEntryLen+1)
	var n, flags int
	failed := raw.Read(func(fd uintptr) (done bool) {
		// Reading would close the files of urgent data that is not in line.
		if err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_OOBINLINE, 1); err != nil {
			return true
		}
		for err = unix.EINTR; err == unix.EINTR; {
			n, _, flags, _, err = unix.Recvmsg(int(fd), b, nil, unix.MSG_PEEK)
		}
		if err == nil && flags&unix.MSG_CTRUNC == 0 {
			_, _, err = unix.Recvfrom(int(fd), b[:n], 0)
		}
		return err != unix.EAGAIN
	})
	switch {
	case failed != nil:
		return nil, failed
	case err != nil:
		return nil, os.NewSyscallError("recvmsg", err)
	case flags&unix.MSG_CTRUNC != 0: // there is no room for files
		return nil, errFiles
	}
	return b[:n], nil
}

var (
	errStalled  = fmt.Errorf("%w: it is stopped, or has too many open files", ErrNoResponse)
	errNoAnswer = fmt.Errorf("%w: it closed the connection", ErrNoResponse)
	errFiles    = errors.New("the process is not a software device: it sent files")
)
