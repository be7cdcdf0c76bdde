package perf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/listening"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/control"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/load"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
	"github.com/verbena-rdma/verbena/internal/terminal"
)

// errBusy: a second client would distort the measurement of the first.
var errBusy = errors.New("another client is being served; try again when it is done")

// server serves one client at a time.
type server struct {
	o    *options
	log  zerolog.Logger
	busy *atomic.Bool // a client is being served
	// device is the server's own device; nil: each client is served on the device through
	// which the server reaches it.
	device *openDevice
}

// serve runs the server until ctx ends.
func serve(ctx context.Context, o *options, stdout, stderr io.Writer) error {
	s := &server{o: o, busy: new(atomic.Bool), log: zerolog.New(zerolog.ConsoleWriter{Out: stderr, TimeFormat: time.TimeOnly, NoColor: !terminal.Colours(stderr)}).With().Timestamp().Logger()}
	told := func(addrs []netip.AddrPort) {
		for i, a := range addrs {
			then := ""
			if i == len(addrs)-1 {
				then = ": interrupt to stop"
			}
			_, _ = fmt.Fprintf(stdout, "listening %v%s\n", a, then)
		}
	}
	if o.cm {
		return s.serveCM(ctx, told)
	}
	var cfg net.ListenConfig
	l, err := cfg.Listen(ctx, "tcp", net.JoinHostPort(o.bind, strconv.Itoa(o.port)))
	if err != nil {
		return fmt.Errorf("listen for clients: %w", err)
	}
	told(listening.AtHost(l.Addr().(*net.TCPAddr).AddrPort()))
	_, err = s.accept(ctx, l, func(conn net.Conn) netip.AddrPort { return conn.RemoteAddr().(*net.TCPAddr).AddrPort() })
	return err
}

// accept serves the clients of a listener until ctx ends or the listener fails; with -once, it reports that
// it has served the first one, with the result.
func (s *server) accept(ctx context.Context, l net.Listener, peerOf func(net.Conn) netip.AddrPort) (served bool, err error) {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	var clients sync.WaitGroup
	defer clients.Wait()
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = conn.Close()
			}
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("wait for a client: %w", err)
		}
		peer := peerOf(conn)
		peer = netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port())
		switch {
		case !s.busy.CompareAndSwap(false, true):
			clients.Go(func() { s.refuse(ctx, conn, peer) })
		case s.o.once:
			_ = l.Close()
			return true, s.serveClient(ctx, conn, peer)
		default:
			clients.Go(func() { _ = s.serveClient(ctx, conn, peer) }) // an error ends only this client
		}
	}
}

// refuse tells a second client to wait.
func (s *server) refuse(ctx context.Context, stream control.Stream, peer netip.AddrPort) {
	conv := control.NewConversation(ctx, stream)
	defer func() { _ = conv.Close() }()
	s.log.Warn().Stringer("client", peer).Msg("a second client was refused")
	conv.Refuse(errBusy)
}

// serveClient serves a client, for whom busy is set, until it leaves or violates the protocol.
func (s *server) serveClient(ctx context.Context, stream control.Stream, peer netip.AddrPort) error {
	log := s.log.With().Stringer("client", peer).Logger()
	conv := control.NewConversation(ctx, stream)
	defer func() { _ = conv.Close() }()
	log.Info().Msg("a client connected")
	err := conv.Send(&control.Ready{})
	if err == nil {
		err = s.tests(conv, peer.Addr(), log)
	}
	s.busy.Store(s.o.once) // there is no next client
	switch {
	case err == nil:
		log.Info().Msg("the client is done")
		_ = conv.Send(&control.Bye{}) // the server is ready for the next client
		return nil
	case ctx.Err() != nil:
		err = errors.New("the program was interrupted")
	default:
		log.Warn().Err(err).Msg("the client's test failed")
	}
	conv.Refuse(err)
	return fmt.Errorf("the client %v: %w", peer, err)
}

// tests runs the tests that the client requests, one after the other.
func (s *server) tests(conv *control.Conversation, peer netip.Addr, log zerolog.Logger) (err error) {
	d := s.device
	defer func() {
		if d != nil && d != s.device {
			err = errors.Join(err, d.Close())
		}
	}()
	for {
		// A silent client would keep others out.
		waiting, cancel := context.WithTimeoutCause(conv.Context(), s.o.timeout, errors.New("the client sent no request"))
		request, err := control.Await[*control.Request](waiting, conv)
		cancel()
		if err != nil {
			return err
		}
		if err := check(request, s.o); err != nil {
			return fmt.Errorf("the server cannot run the test: %w", err)
		}
		if d == nil {
			if d, err = open(s.o, peer); err != nil {
				return err
			}
		}
		t := &serverTest{o: s.o, conv: conv, plan: &request.Plan, token: request.Token, device: d}
		last, err := t.run()
		if err != nil {
			return err
		}
		log.Info().Stringer("test", request.Plan.Test).Int("steps", request.Plan.Steps()).Msg("measured")
		if last {
			return nil
		}
		if err := conv.Send(&control.Bye{}); err != nil {
			return err
		}
	}
}

// check validates the request of a client.
func check(r *control.Request, o *options) error {
	if err := o.validate(&r.Plan); err != nil {
		return err
	}
	if r.Plan.CM != (len(r.Token) == control.TokenLen) {
		return fmt.Errorf("%w: the token has %d bytes", control.ErrProtocol, len(r.Token))
	}
	return nil
}

// serverTest is one test at the server.
type serverTest struct {
	o      *options
	conv   *control.Conversation
	plan   *plan.Plan
	token  []byte
	device *openDevice
}

// run serves the test, and reports whether it was the last one.
func (t *serverTest) run() (last bool, err error) {
	s, err := load.OpenEnd(t.conv.Context(), load.Config{Device: t.device.dev, More: t.device.more, Port: t.device.port, GIDIndex: t.device.gid, Local: t.device.local, Plan: t.plan, Server: true, Timeout: t.o.timeout, Token: t.token})
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := t.connect(s); err != nil {
		return false, err
	}
	for i := range t.plan.Steps() {
		if err := t.step(s, i); err != nil {
			return false, fmt.Errorf("step %d: %w", i, err)
		}
	}
	bye, err := control.Await[*control.Bye](s.Context(), t.conv)
	if err != nil {
		return false, err
	}
	s.ExpectClose()
	return bye.Last, nil
}

func (t *serverTest) connect(s load.End) error {
	ctx, cancel := context.WithTimeoutCause(s.Context(), t.o.timeout, fmt.Errorf("the client has not connected within %v", t.o.timeout))
	defer cancel()
	host, err := t.device.host(s.GID())
	if err != nil {
		return err
	}
	if err := t.conv.Send(&control.Accept{Host: host}); err != nil {
		return err
	}
	if err := s.Offer(func(e *control.End) error { return t.conv.Send(e) }); err != nil {
		return err
	}
	if err := s.Connect(func() (*control.End, error) { return control.Await[*control.End](ctx, t.conv) }, load.DialTo{}); err != nil {
		return err
	}
	if err := s.WaitReady(); err != nil {
		return err
	}
	return t.conv.Send(&control.Connected{})
}

// step serves one step of the plan.
func (t *serverTest) step(s load.End, i int) error {
	begin, err := control.Await[*control.Begin](s.Context(), t.conv)
	if err != nil {
		return err
	}
	if begin.Step != i {
		return fmt.Errorf("%w: the client began step %d, want step %d", control.ErrProtocol, begin.Step, i)
	}
	if err := s.Prepare(i); err != nil {
		return err
	}
	g, watch := newCounterSnapshot(t.device), load.StartStopwatch()
	if err := t.conv.Send(&control.Ready{}); err != nil {
		return err
	}
	var figures load.Figures
	if t.plan.Bidirectional {
		samples, err := s.Measure()
		if err != nil {
			return err
		}
		figures = load.Sum(samples)
	}
	if _, err := control.Await[*control.Stop](s.Context(), t.conv); err != nil {
		return err
	}
	outcome := &control.Outcome{Busy: watch.Busy(), Operations: figures.Operations, Rate: figures.Rate, Peak: figures.Peak}
	if outcome.Checked, outcome.Damage, err = s.Verified(); err != nil {
		return err
	}
	outcome.Counters, outcome.Swapped = g.changes()
	return t.conv.Send(outcome)
}
