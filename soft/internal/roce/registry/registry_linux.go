package registry

import (
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
	"github.com/verbena-rdma/verbena/soft/internal/roce/unixsocket"
	"github.com/verbena-rdma/verbena/verbs"
)

// Complete: every listener of this machine is registered.
const Complete = true

// closeTimeout bounds how long other processes can delay Close.
const closeTimeout = time.Second

// Entries are the entries of one listener.
type Entries struct {
	sockets []*net.UnixListener
	serving *sync.WaitGroup // goroutines that serve the sockets
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
	e.sockets = append(e.sockets, l)
	if e.serving == nil {
		e.serving = new(sync.WaitGroup)
	}
	entry := []byte(device.String())
	e.serving.Go(func() {
		var kept fifo.Queue[*net.UnixConn]
		unixsocket.Serve(l, func(conn *net.UnixConn) {
			_, _ = conn.Write(entry) // it does not wait, since there is room for an entry
			kept.Push(conn)
			if kept.Len() > maxKept {
				unixsocket.Close(kept.Pop())
			}
		})
		for kept.Len() > 0 {
			unixsocket.Close(kept.Pop())
		}
	})
	return nil
}

// Close removes the entries. It waits for at most closeTimeout, and continues in the background:
// before Linux 6.16, clients that have not been accepted can have sent files that take long to
// close.
func (e *Entries) Close() {
	if e.serving == nil {
		return
	}
	serving := e.serving
	for _, l := range e.sockets {
		serving.Go(func() { _ = l.Close() })
	}
	e.sockets, e.serving = nil, nil
	closers.Wait(closeTimeout, serving.Wait)
}

// maxKept is how many connections of clients the socket of an entry keeps open. While one is open,
// its client knows that the entry holds. The oldest is closed for the next.
const maxKept = 32

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
// as long as the other process keeps the connection open. So a program that dials a listener again
// and again asks once. The zero value is empty. All methods may be called from any goroutine.
type Known struct {
	mu      sync.Mutex
	entries map[string]knownEntry // by the names of the sockets
	closed  bool
}

type knownEntry struct {
	device netip.AddrPort
	conn   *net.UnixConn
}

// Find is the function Find. It keeps what it has found.
func (k *Known) Find(ctx context.Context, space Space, addr netip.AddrPort) (device netip.AddrPort, err error) {
	device, conn, err := findConn(ctx, space, addr)
	if conn == nil {
		return device, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for other := range k.entries {
		if len(k.entries) < maxKept {
			break
		}
		k.forget(other)
	}
	key := name(space, addr)
	k.forget(key)
	if k.closed {
		unixsocket.Close(conn)
		return device, nil
	}
	if k.entries == nil {
		k.entries = make(map[string]knownEntry)
	}
	k.entries[key] = knownEntry{device, conn}
	return device, nil
}

// Look returns what Find has found, if it still holds. It does not wait.
func (k *Known) Look(space Space, addr netip.AddrPort) (device netip.AddrPort, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	key := name(space, addr)
	e, ok := k.entries[key]
	if !ok || isOpen(e.conn) {
		return e.device, ok
	}
	k.forget(key)
	return netip.AddrPort{}, false
}

// isOpen reports whether the other process has neither closed the connection nor sent anything.
func isOpen(conn *net.UnixConn) (open bool) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) {
		_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		open = err == unix.EAGAIN
	})
	return open
}

// forget removes an entry, if there is one. The lock is held.
func (k *Known) forget(key string) {
	if e, ok := k.entries[key]; ok {
		delete(k.entries, key)
		unixsocket.Close(e.conn)
	}
}

// Close forgets all, now and what is found later.
func (k *Known) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	for key := range k.entries {
		k.forget(key)
	}
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
