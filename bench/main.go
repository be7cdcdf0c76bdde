// Command bench measures what verbena perf cannot: many connections, scalable reliable datagrams, the
// cost above an adapter, simulated hosts. It also compares the SDK with other programs, and with
// another version of itself.
//
//	bench scale -connections 1000   one of them; -h lists the flags
//	bench peers                     beside UCX, libfabric and perftest
//	bench compare -before ../../old this version beside another
//
// It prints figures of this machine at this moment, and asserts nothing. Compare ratios within
// one run, not figures of two runs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/verbena-rdma/verbena/bench/internal/chart"
	"github.com/verbena-rdma/verbena/bench/internal/compare"
	"github.com/verbena-rdma/verbena/bench/internal/links"
	"github.com/verbena-rdma/verbena/bench/internal/measure"
	"github.com/verbena-rdma/verbena/bench/internal/overhead"
	"github.com/verbena-rdma/verbena/bench/internal/peers"
	"github.com/verbena-rdma/verbena/bench/internal/profile"
	"github.com/verbena-rdma/verbena/bench/internal/simulation"
	"github.com/verbena-rdma/verbena/internal/interrupt"
	"github.com/verbena-rdma/verbena/internal/version"
)

type options struct {
	device   string
	duration time.Duration
	profile  string
	counters bool
	only     string // of the second process: how connections are made
	prefix   string // command line before that of the second process
	serve    bool   // this process is the second one

	rounds      int
	connections int // at most
	receives    int // of each connection's own in scale
}

// commands are the subcommands.
var commands = []struct {
	name, about string
	run         func(ctx context.Context, args []string) error
}{
	{"scale", "growing numbers of connections to another process: set-up, memory, rate, fairness, and the latency of one of them", own("scale", scaleScenes)},
	{"srd", "SRD and RC through the verbs, both ends in one process, and on one goroutine if there is one peer: rate, bandwidth, round trip; then SRD relative to RC", own("srd", srdScenes)},
	{"overhead", "what an operation costs above the adapter: a C loop, package verbs, package rdma and package await over a library that completes at once", overhead.Run},
	{"sim", "thousands of simulated hosts: the simulator's speed, many senders to one receiver", simulation.Run},
	{"links", "batches of package transfer over two cables, beside one; and when one is cut, as root", links.Run},
	{"peers", "Verbena beside UCX, libfabric and perftest; package rsocket beside TCP; verbena send beside scp", peers.Run},
	{"compare", "two versions of the SDK, or two sets of reports of verbena perf", compare.Run},
	{"plot", "draws reports of verbena perf", chart.Run},
	{"stream", "one end of a stream, for peers", peers.RunStream},
}

const warmUp = 300 * time.Millisecond

func main() {
	ctx, stop := interrupt.Context(context.Background())
	err := run(ctx, os.Args[1:])
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	name := ""
	if len(args) > 0 {
		name = args[0]
	}
	if name == "-version" || name == "--version" {
		fmt.Println("bench", version.String())
		return nil
	}
	list := "usage: bench NAME [flags]\n\n"
	for _, c := range commands {
		if c.name == name {
			if err := c.run(ctx, args[1:]); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		}
		list += fmt.Sprintf("  %-9s %s\n", c.name, c.about)
	}
	if name == "-h" || name == "-help" || name == "--help" {
		fmt.Print(list)
		return nil
	}
	fmt.Fprint(os.Stderr, list)
	return fmt.Errorf("there is no measurement %q", name)
}

// own is a subcommand with the flags of this package.
func own(name string, scenes func(options) ([]*measure.Scene, error)) func(context.Context, []string) error {
	return func(ctx context.Context, args []string) (err error) {
		var o options
		f := flag.NewFlagSet("bench "+name, flag.ExitOnError)
		f.StringVar(&o.device, "d", "soft-lo", "device")
		f.DurationVar(&o.duration, "t", 2*time.Second, "time of each measurement, after a warm-up")
		f.StringVar(&o.only, "only", "", "for the second process of scale")
		f.IntVar(&o.rounds, "rounds", 3, "number of rounds; each round measures all alternatives in turn")
		f.IntVar(&o.connections, "connections", 5000, "largest number of connections")
		f.IntVar(&o.receives, "receives", 0, "receives of no bytes that each connection of scale has")
		f.StringVar(&o.profile, "cpuprofile", "", "file for a CPU profile of the first process")
		f.BoolVar(&o.counters, "counters", false, "show the counters of each device when it is closed")
		f.StringVar(&o.prefix, "peer-prefix", "", "`words` before the command of the second process of scale, such as 'taskset 2'")
		markdown := f.Bool("markdown", false, "write the tables in Markdown")
		verbose := f.Bool("v", false, "write each value to standard error")
		f.BoolVar(&o.serve, "serve", false, "run as the second process of scale")
		_ = f.Parse(args) // exits on an error
		if f.NArg() > 0 || o.connections < 1 || o.rounds < 1 || o.duration <= 0 {
			return errors.New("-rounds and -connections must be 1 or more, -t must be positive, and no arguments are allowed; see -help")
		}
		if o.serve {
			return serveMany(o, os.Stdin, os.Stdout)
		}
		stop, err := profile.Start(o.profile)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
		list, err := scenes(o)
		if err != nil {
			return err
		}
		log := io.Discard
		if *verbose {
			log = os.Stderr
		}
		r, err := measure.Run(ctx, list, o.rounds, log)
		if r.Rounds == 0 {
			return err
		}
		r.About = []string{measure.Machine()}
		return errors.Join(err, r.Write(os.Stdout, *markdown))
	}
}
