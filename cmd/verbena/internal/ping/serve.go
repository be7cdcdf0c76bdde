package ping

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/listening"
	"github.com/verbena-rdma/verbena/device/route"
	"github.com/verbena-rdma/verbena/internal/terminal"
	"github.com/verbena-rdma/verbena/pe"
)

// serve serves clients until ctx ends: at one address, at those of one device, or at all of this host.
func serve(ctx context.Context, o *options, out *printer, stderr io.Writer) (err error) {
	host, port := "", o.port
	if o.target != "" {
		if host, port, err = o.split(); err != nil {
			return err
		}
	}
	log := zerolog.New(zerolog.ConsoleWriter{Out: stderr, TimeFormat: time.TimeOnly, NoColor: !terminal.Colours(stderr)}).With().Timestamp().Logger()
	var addr netip.Addr
	if a, _ := netip.ParseAddr(host); host != "" && !a.IsUnspecified() {
		if addr, err = lookUp(ctx, o, host, out); err != nil {
			return err
		}
		host = addr.String()
	} else {
		host = ""
	}
	if o.device == "" && host == "" {
		return serveEverywhere(ctx, o, uint16(port), out, log)
	}
	r, err := route.Find(o.device, addr)
	if err != nil {
		return err
	}
	s, err := newPart(o, r, out, log)
	if err != nil {
		return err
	}
	at, _, err := s.server.Listen(s.ctx, net.JoinHostPort(host, strconv.Itoa(port)))
	if err == nil {
		out.listening(listening.At(s.device.dev, netip.AddrPortFrom(at.Addr().WithZone(addr.Zone()), at.Port())))
		select {
		case <-ctx.Done():
		case <-s.ctx.Done():
		}
	}
	return errors.Join(err, s.Close())
}

// serveEverywhere serves clients at all addresses of this host.
func serveEverywhere(ctx context.Context, o *options, port uint16, out *printer, log zerolog.Logger) error {
	open := func(name string) (route.Part, error) {
		return newPart(o, &route.Route{Device: name, Why: "it has addresses of this host; use -d, or an ADDRESS, to serve fewer"}, out, log)
	}
	e, err := route.Serve(port, route.ServeConfig{Open: open, Added: out.listening, Log: log})
	if err != nil {
		return err
	}
	out.listening(e.Addrs())
	<-ctx.Done()
	return e.Close()
}

// listening prints where the server is reached.
func (p *printer) listening(addrs []netip.AddrPort) {
	for i, a := range addrs {
		then := ""
		if i == len(addrs)-1 {
			then = ": interrupt to stop"
		}
		p.line("listening", "%v%s", a, then)
	}
}

// part is a server on one device, with the engine that a goroutine drives.
type part struct {
	device *openDevice
	engine *pe.Engine
	server *Server
	stop   context.CancelFunc
	ctx    context.Context // ends when the engine does not run any more
	err    error           // why, once ctx has ended; nil after stop
}

func newPart(o *options, r *route.Route, out *printer, log zerolog.Logger) (*part, error) {
	d, err := openRoute(o, r, out)
	if err != nil {
		return nil, err
	}
	p := &part{device: d, engine: pe.New(pe.Config{})}
	if p.server, err = NewServer(d.dev, p.engine, log); err != nil {
		return nil, errors.Join(err, p.engine.Close(), d.dev.Close())
	}
	running, stop := context.WithCancel(context.Background())
	p.stop = stop
	var ended context.CancelCauseFunc
	p.ctx, ended = context.WithCancelCause(context.Background())
	go func() {
		if p.err = p.engine.Run(running); errors.Is(p.err, context.Canceled) {
			p.err = nil
		}
		ended(cmp.Or(p.err, errStopped))
	}()
	return p, nil
}

var errStopped = errors.New("the server on the device has stopped")

// Listen implements route.Part.
func (p *part) Listen(addr netip.AddrPort) (port uint16, stop func(), err error) {
	at, stop, err := p.server.Listen(p.ctx, addr.String())
	return at.Port(), stop, err
}

// Done implements route.Part.
func (p *part) Done() <-chan struct{} { return p.ctx.Done() }

// Close implements route.Part.
func (p *part) Close() error {
	p.stop()
	<-p.ctx.Done()
	return errors.Join(p.err, p.server.Close(), p.engine.Close(), p.device.dev.Close())
}
