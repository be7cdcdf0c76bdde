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

	"github.com/verbena-rdma/verbena/verbs"
)

// Complete: every listener of this machine is registered.
const Complete = true

// Add registers the device that listens on an address and port. It fails with verbs.ErrInUse
// if another one is registered.
func (e *Entries) Add(space Space, addr, device netip.AddrPort) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name(space, addr), Net: "unix"})
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
	serving := e.serving
	serving.Go(func() { serve(l, device, serving) })
	return nil
}

// Find returns the address and UDP port of the device that listens on an address and port, if
// it is a software device of this machine. The error is ErrNotRegistered if there is none; any
// other error says why Find does not know. If the other process does not respond, Find waits
// until the context ends.
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
	case <-time.After(Timeout):
		// The other process has sent files that take long to close: see Entries.Close.
		return device, fmt.Errorf("query the process that listens on %v: %w", addr, errStalled)
	}
}

func find(ctx context.Context, space Space, addr netip.AddrPort) (device netip.AddrPort, err error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", name(space, addr))
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return device, ErrNotRegistered
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled): // too many clients wait already
		return device, errStalled
	case err != nil:
		return device, err
	}
	defer func() { _ = conn.Close() }()
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
	errStalled  = errors.New("the process does not respond: it is stopped, or has too many open files")
	errNoAnswer = errors.New("the process closed the connection without a response")
)
