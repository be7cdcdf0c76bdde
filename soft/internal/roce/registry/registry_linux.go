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
		unixsocket.Serve(l, func(conn *net.UnixConn) {
			_, _ = conn.Write(entry) // it does not wait, since there is room for an entry
			unixsocket.Close(conn)
		})
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

// Find returns the address and UDP port of the device that listens on an address and port, if
// it is a software device of this machine. The error is ErrNotRegistered if there is none; any
// other error says why Find does not know. It matches ErrNoResponse if the other process does not
// respond until the context ends, has too many clients, or closes connections without an answer.
func Find(ctx context.Context, space Space, addr netip.AddrPort) (device netip.AddrPort, err error) {
	for range maxTries {
		if device, err = find(ctx, space, addr); err != errNoAnswer || ctx.Err() != nil {
			break
		}
		time.Sleep(time.Millisecond) // the process may be about to close its socket
	}
	if err != nil && err != ErrNotRegistered {
		err = fmt.Errorf("query the process that listens on %v: %w", addr, err)
	}
	return device, err
}

// maxTries bounds the connections of one Find that end without an answer.
const maxTries = 10

func find(ctx context.Context, space Space, addr netip.AddrPort) (device netip.AddrPort, err error) {
	conn, err := unixsocket.Dial(ctx, "unix", name(space, addr))
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return device, ErrNotRegistered
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled): // too many clients wait already
		return device, errStalled
	case err != nil:
		return device, err
	}
	defer unixsocket.Close(conn)
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
