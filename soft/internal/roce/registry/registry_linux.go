package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/unixsocket"
	"github.com/verbena-rdma/verbena/verbs"
)

// Complete: every listener of this machine is registered.
const Complete = true

// closeTimeout bounds how long other processes can delay Close, and Find beyond its context.
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
	closed := make(chan struct{})
	go func() {
		serving.Wait()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(closeTimeout):
	}
}

// Find returns the address and UDP port of the device that listens on an address and port, if
// it is a software device of this machine. The error is ErrNotRegistered if there is none; any
// other error says why Find does not know. It matches ErrNoResponse if the other process does not
// respond until the context ends, or has too many clients.
func Find(ctx context.Context, space Space, addr netip.AddrPort) (device netip.AddrPort, err error) {
	found := make(chan struct{})
	var answer netip.AddrPort
	var failed error
	go func() {
		defer close(found)
		for answer, failed = find(ctx, space, addr); failed == errNoAnswer && ctx.Err() == nil; answer, failed = find(ctx, space, addr) {
			time.Sleep(time.Millisecond) // the process may be about to close its socket
		}
		if failed != nil && failed != ErrNotRegistered {
			failed = fmt.Errorf("query the process that listens on %v: %w", addr, failed)
		}
	}()
	select {
	case <-found:
		return answer, failed
	case <-ctx.Done():
	}
	select {
	case <-found:
		return answer, failed
	case <-time.After(closeTimeout): // before Linux 6.16, for files that the other process has sent
		return device, fmt.Errorf("query the process that listens on %v: %w", addr, errStalled)
	}
}

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
	text, err := io.ReadAll(io.LimitReader(conn, int64(maxEntryLen)+1))
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

var (
	errStalled  = fmt.Errorf("%w: it is stopped, or has too many open files", ErrNoResponse)
	errNoAnswer = fmt.Errorf("%w: it closed the connection", ErrNoResponse)
)
