package registry

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/verbs"
)

// Complete: every listener of this machine is registered.
const Complete = true

// Add registers the device that listens on an address and port. It fails with
// verbs.ErrInUse where another one does.
func (e *Entries) Add(space Space, addr, device netip.AddrPort) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name(space, addr), Net: "unix"})
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return verbs.ErrInUse
	case err != nil:
		return err
	}
	e.sockets = append(e.sockets, l)
	e.serving.Go(func() { e.serve(l, device) })
	return nil
}

// Find returns the address and UDP port of the device that listens on an address and
// port, if it is a software device of this machine. Where the other process stands still
// it waits until the context ends.
func Find(ctx context.Context, space Space, addr netip.AddrPort) (device netip.AddrPort, ok bool) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", name(space, addr))
	if err != nil {
		return device, false
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	text, err := io.ReadAll(io.LimitReader(conn, int64(longest)+1))
	if err != nil {
		return device, false
	}
	device, err = netip.ParseAddrPort(string(text))
	return device, err == nil && plausible(addr.Addr().Unmap(), device)
}
