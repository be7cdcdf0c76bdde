package perf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/cmstream"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/control"
	"github.com/verbena-rdma/verbena/device/route"
	"github.com/verbena-rdma/verbena/rdma"
)

// dialedStream is a stream whose Close also closes its endpoint.
type dialedStream struct {
	*cmstream.Stream
	endpoint *cmstream.Endpoint
}

func (s *dialedStream) Close() error { return errors.Join(s.Stream.Close(), s.endpoint.Close()) }

// dialCM connects to the server through the connection manager.
func dialCM(ctx context.Context, o *options, d *openDevice, addr string) (control.Stream, error) {
	endpoint, err := cmstream.Open(d.dev, d.port, d.gid)
	if err != nil {
		return nil, err
	}
	stream, err := endpoint.Dial(ctx, addr, rdma.DialConfig{LocalAddr: d.local, Timeout: o.timeout, Once: true})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("reach the server: %w; is verbena perf -R running there?", err), endpoint.Close())
	}
	return &dialedStream{stream, endpoint}, nil
}

// serveCM is the server that listens with the connection manager. It uses one device to listen
// and to measure, because clients reach no other device at its address.
func (s *server) serveCM(ctx context.Context, listening func(netip.AddrPort)) (err error) {
	bind, _ := netip.ParseAddr(s.o.bind)
	if s.o.device == "" && (!bind.IsValid() || bind.IsUnspecified()) {
		s.o.device = route.DefaultDevice()
	}
	if bind.IsUnspecified() {
		bind = netip.Addr{}
	}
	d, err := open(s.o, bind)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.dev.Close()) }()
	endpoint, err := cmstream.Open(d.dev, d.port, d.gid)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, endpoint.Close()) }()
	s.device = d
	var clients sync.WaitGroup
	defer clients.Wait()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	addr, err := endpoint.Listen(ctx, net.JoinHostPort(s.o.bind, strconv.Itoa(s.o.port)), func(stream *cmstream.Stream, peer netip.AddrPort) {
		clients.Go(func() {
			if err := s.serveClient(ctx, stream, peer); s.o.once && !errors.Is(err, errBusy) {
				stop(&servedOnce{err})
			}
		})
	})
	if err != nil {
		return fmt.Errorf("listen for clients: %w", err)
	}
	if addr.Addr().IsUnspecified() {
		addr = netip.AddrPortFrom(s.address(d), addr.Port())
	}
	listening(addr)
	<-ctx.Done()
	if first := (*servedOnce)(nil); errors.As(context.Cause(ctx), &first) {
		return first.err
	}
	return nil
}

// servedOnce carries the result of serving the one client.
type servedOnce struct{ err error }

func (s *servedOnce) Error() string { return "the one client was served" }

// address is an address at which clients can dial the server. On the loopback interface, a
// dial to any loopback address reaches it.
func (s *server) address(d *openDevice) netip.Addr {
	table, err := d.dev.GIDs(max(d.port, 1))
	if err != nil || len(table) == 0 {
		return netip.IPv6Unspecified()
	}
	a := table[0].GID.Addr()
	if a.IsLoopback() {
		a = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return a
}
