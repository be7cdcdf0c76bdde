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
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/route"
	"github.com/verbena-rdma/verbena/rdma"
)

// ownStation is a stream whose Close also closes its station.
type ownStation struct {
	*cmstream.Stream
	station *cmstream.Station
}

func (s *ownStation) Close() error { return errors.Join(s.Stream.Close(), s.station.Close()) }

// dialCM connects to the server through the connection manager.
func dialCM(ctx context.Context, o *options, d *opened, addr string) (control.Stream, error) {
	station, err := cmstream.Open(d.dev, d.port, d.gid)
	if err != nil {
		return nil, err
	}
	stream, err := station.Dial(ctx, addr, rdma.DialConfig{LocalAddr: d.local, Timeout: o.timeout, Once: true})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("reach the server: %w; is verbena perf -R running there?", err), station.Close())
	}
	return &ownStation{stream, station}, nil
}

// serveCM is the server that listens with the connection manager. It uses one device to listen
// and to measure, because clients reach no other device at its address.
func (s *server) serveCM(ctx context.Context, listening func(netip.AddrPort)) (err error) {
	bind, _ := netip.ParseAddr(s.o.bind)
	if s.o.device == "" && (!bind.IsValid() || bind.IsUnspecified()) {
		s.o.device = route.Away()
	}
	if bind.IsUnspecified() {
		bind = netip.Addr{}
	}
	d, err := open(s.o, bind)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.dev.Close()) }()
	station, err := cmstream.Open(d.dev, d.port, d.gid)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, station.Close()) }()
	s.device = d
	var clients sync.WaitGroup
	defer clients.Wait()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	addr, err := station.Listen(ctx, net.JoinHostPort(s.o.bind, strconv.Itoa(s.o.port)), func(stream *cmstream.Stream, peer netip.AddrPort) {
		clients.Go(func() {
			if err := s.serveClient(ctx, stream, peer); s.o.once && !errors.Is(err, errBusy) {
				stop(&served{err})
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
	if first := (*served)(nil); errors.As(context.Cause(ctx), &first) {
		return first.err
	}
	return nil
}

// served carries the result of serving the one client.
type served struct{ err error }

func (s *served) Error() string { return "the one client was served" }

// address is an address at which clients can dial the server. On the loopback interface, a
// dial to any loopback address reaches it.
func (s *server) address(d *opened) netip.Addr {
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
