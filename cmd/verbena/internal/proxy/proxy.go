// Package proxy is verbena proxy: it joins TCP connections with connections of rsockets, which
// run over RDMA, in either direction. So programs that know nothing of RDMA use it.
package proxy

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/rs/zerolog"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/exit"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/listening"
	"github.com/verbena-rdma/verbena/internal/terminal"
	"github.com/verbena-rdma/verbena/internal/usage"
	"github.com/verbena-rdma/verbena/metrics"
	"github.com/verbena-rdma/verbena/rsocket"
)

// options are the flags and arguments.
type options struct {
	limits
	device         string
	verbose, stat  bool
	listen, target address
}

const text = `Accepts connections at LISTEN, and joins each of them with a new connection to TARGET, until
interrupted. An address is tcp:HOST:PORT, or rdma:HOST:PORT for rsockets (as of librdmacm) over
RDMA:

  verbena proxy tcp:8080 rdma:server:7471          here, for TCP programs
  verbena proxy rdma:*:7471 tcp:localhost:8080     at the server

LISTEN without HOST accepts connections from this machine only; tcp:*:PORT and rdma:*:PORT listen
on all addresses. Anybody who reaches LISTEN reaches TARGET: the proxy has neither passwords nor
encryption. IPv6 addresses are in brackets: tcp:[fe80::1%eth0]:8080.`

// Main runs the command, and returns its exit code.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parseArgs(args, stdout)
	if err != nil {
		return exit.WrongArguments("verbena proxy", err, stderr)
	}
	err = o.run(ctx, stderr)
	return exit.Code(ctx, "verbena proxy", err, stderr)
}

// Page describes the command.
func Page() *usage.Page { return page(&options{}) }

func page(o *options) *usage.Page {
	f := usage.NewFlags("verbena proxy")
	f.StringVar(&o.device, "d", "", "`device` for RDMA, such as mlx5_0 or soft-eth0 (default: the one by which the system reaches the address)")
	f.IntVar(&o.max, "max", 512, "`number` of connections open at the same time; further ones wait")
	f.DurationVar(&o.connect, "t", 10*time.Second, "time limit for connecting to TARGET")
	f.DurationVar(&o.idle, "idle", 0, "end a connection when no data has moved in either direction for this time (default: never)")
	f.DurationVar(&o.grace, "grace", 10*time.Second, "after an interrupt: time that open connections have to end; a second interrupt ends them at once")
	f.BoolVar(&o.stat, "stat", false, "let verbena stat, run by the same user, see the connections over RDMA")
	f.BoolVar(&o.verbose, "v", false, "log every connection, not only failures")
	return &usage.Page{Name: "verbena proxy", About: "join TCP connections and RDMA connections, for programs that know only TCP",
		Forms: []string{"[flags] LISTEN TARGET"}, Text: text, Flags: f}
}

func parseArgs(args []string, stdout io.Writer) (*options, error) {
	var o options
	p := page(&o)
	operands, err := p.Parse(args, stdout)
	if err != nil {
		return nil, err
	}
	var emptyDevice bool
	p.Flags.Visit(func(set *flag.Flag) { emptyDevice = emptyDevice || set.Name == "d" && o.device == "" })
	switch {
	case len(operands) != 2:
		return nil, fmt.Errorf("there are %d arguments after the flags; give two, LISTEN and TARGET, as in: verbena proxy tcp:8080 rdma:server:7471", len(operands))
	case o.max < 1 || o.max > largestMax:
		return nil, fmt.Errorf("-max is %d; it must be 1 to %d", o.max, largestMax)
	case o.connect <= 0:
		return nil, fmt.Errorf("-t is %v; it must be more than 0", o.connect)
	case o.idle < 0 || o.grace < 0:
		return nil, errors.New("-idle and -grace must be 0 or more")
	case emptyDevice:
		return nil, errors.New("the value of -d is empty: is a shell variable not set? Omit the flag to use its default")
	}
	if o.listen, err = parseAddress(operands[0]); err != nil {
		return nil, fmt.Errorf("LISTEN: %w", err)
	}
	if o.target, err = parseTarget(operands[1]); err != nil {
		return nil, fmt.Errorf("TARGET: %w", err)
	}
	if o.device != "" && o.listen.network != "rdma" && o.target.network != "rdma" {
		return nil, errors.New("-d names a device for RDMA, but both addresses are of TCP; omit it, or write rdma:HOST:PORT")
	}
	return &o, nil
}

// largestMax is beyond what one process can serve: each connection has two of its files.
const largestMax = 1 << 16

// run listens and serves until ctx ends.
func (o *options) run(ctx context.Context, stderr io.Writer) (err error) {
	level := zerolog.InfoLevel
	if o.verbose {
		level = zerolog.DebugLevel
	}
	console := zerolog.ConsoleWriter{Out: stderr, TimeFormat: time.TimeOnly, NoColor: !terminal.Colours(stderr)}
	log := zerolog.New(zerolog.SyncWriter(console)).Level(level).With().Timestamp().Logger() // connections log at the same time
	rsockets := newRDMA(o.device, o.max, log.Level(zerolog.InfoLevel))
	defer func() { err = errors.Join(err, rsockets.close()) }()
	if o.stat {
		served, err := metrics.Serve(rsockets.stacks)
		if err != nil {
			return err
		}
		defer func() { _ = served.Close() }()
	}
	networks := map[string]network{"tcp": tcp{}, "rdma": rsockets}
	target := networks[o.target.network]
	listener, err := networks[o.listen.network].listen(ctx, o.listen)
	if err != nil {
		return err
	}
	if err := o.checkLoop(ctx, listener.Addr()); err != nil {
		return errors.Join(err, listener.Close())
	}
	for _, at := range served(listener) {
		log.Info().Msgf("listening on %s:%v, for %v; %s", o.listen.network, at, o.target, o.reach(listener.Addr()))
	}
	s := server{
		limits: o.limits, listener: listener, target: o.target.String(), log: log,
		dial: func(ctx context.Context) (stream, error) {
			if err := o.checkLoop(ctx, listener.Addr()); err != nil { // a name may have other addresses now
				return nil, err
			}
			return target.dial(ctx, o.target)
		},
	}
	return s.serve(ctx)
}

// served returns the addresses at which the listener is reached.
func served(l net.Listener) []netip.AddrPort {
	if l, ok := l.(*rsocket.Listener); ok {
		return l.Addrs()
	}
	return listening.AtHost(l.Addr().(*net.TCPAddr).AddrPort())
}

var errLoop = errors.New("the target is the address that the proxy itself listens on; name another TARGET")

// checkLoop fails if connections to the target come back to the listener: one client would take all
// places.
func (o *options) checkLoop(ctx context.Context, listener net.Addr) error {
	ctx, cancel := context.WithTimeout(ctx, o.connect)
	defer cancel()
	if loops(ctx, o.target, o.listen, listener) {
		return fmt.Errorf("connect to %v: %w", o.target, errLoop)
	}
	return nil
}

// reach says who can connect to the listener.
func (o *options) reach(listener net.Addr) string {
	at, err := netip.ParseAddrPort(listener.String())
	switch {
	case err == nil && !at.Addr().IsLoopback():
		return "any machine that reaches this address reaches the target"
	case o.listen.host == "":
		return fmt.Sprintf("only programs on this machine can connect; %v listens on all addresses", o.listen.with("*"))
	}
	return "only programs on this machine can connect"
}
