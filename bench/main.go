// Command bench measures what verbena perf cannot: the engine alone, many connections,
// scalable reliable datagrams, many senders on one link. It also compares the SDK with
// perftest and scp, and with another version of itself.
//
//	bench all                      cores, connections, scale, dials and srd
//	bench scale -connections 1000  one of them; -h lists the flags
//	bench compare -before ../old   this version beside another
//
// It prints figures of this machine at this moment, and asserts nothing. Compare ratios within
// one run, not figures of two runs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/verbena-rdma/verbena/bench/internal/compare"
	"github.com/verbena-rdma/verbena/bench/internal/incast"
	"github.com/verbena-rdma/verbena/bench/internal/overhead"
	"github.com/verbena-rdma/verbena/bench/internal/perftest"
	"github.com/verbena-rdma/verbena/bench/internal/profile"
	"github.com/verbena-rdma/verbena/bench/internal/scp"
	"github.com/verbena-rdma/verbena/bench/internal/simulation"
	"github.com/verbena-rdma/verbena/bench/internal/sockets"
	"github.com/verbena-rdma/verbena/internal/interrupt"
	"github.com/verbena-rdma/verbena/internal/version"
)

type options struct {
	device   string
	duration time.Duration
	profile  string
	counters bool
	only     string // the only row to measure
	prefix   string // command line before that of the second process
	serve    bool   // this process is the second one

	rounds      int
	connections int // at most
	receives    int // of each connection's own in scale
}

// measurement is one of the measurements. run returns the results as text.
type measurement struct {
	name  string
	about string
	run   func(options) (string, error)
}

var measurements = []measurement{
	{"cores", "8-byte writes, batched, by engines on one device, each with both ends of its connection", compareCores},
	{"connections", "the cost of idle connections", manyConnections},
	{"scale", "growing numbers of connections to another process: set-up, memory, rate, fairness, and the latency of one of them", measureScale},
	{"dials", "connections by address, both ends in one process", dialRates},
	{"srd", "SRD and RC through the verbs, both ends in one process, and on one goroutine if there is one peer: rate, bandwidth, round trip; then SRD relative to RC", compareSRD},
}

// comparisons are the subcommands that parse their own flags.
var comparisons = []struct {
	name, about string
	run         func(ctx context.Context, args []string) error
}{
	{"incast", "many connections that share a link to one receiver, with congestion control and without", incast.Run},
	{"sim", "thousands of simulated hosts: the simulator's speed, incast, a server that restarts, SRD", simulation.Run},
	{"rsocket", "package rsocket beside TCP: round trips, bandwidth and HTTP, over loopback and between two namespaces", sockets.Run},
	{"rsocket-scale", "package rsocket beside TCP: idle and busy connections, and a reader that has stopped", sockets.RunScale},
	{"overhead", "what an operation costs above the adapter: a C loop, package verbs, package rdma and package await over a library that completes at once", overhead.Run},
	{"compare", "two versions of the SDK", compare.Run},
	{"perftest", "the SDK and perftest, on rxe in the virtual machine", perftest.Run},
	{"scp", "verbena send and scp", scp.Run},
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
	for _, c := range comparisons {
		if c.name == name {
			if err := c.run(ctx, args[1:]); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		}
	}
	for _, m := range measurements {
		if m.name == name || name == "all" {
			return measureAll(name, args[1:])
		}
	}
	list := "usage: bench NAME [flags]\n\n  all           all of the first five\n"
	for _, m := range measurements {
		list += fmt.Sprintf("  %-13s %s\n", m.name, m.about)
	}
	for _, c := range comparisons {
		list += fmt.Sprintf("  %-13s %s\n", c.name, c.about)
	}
	if name == "-h" || name == "-help" || name == "--help" {
		fmt.Print(list)
		return nil
	}
	fmt.Fprint(os.Stderr, list)
	return fmt.Errorf("there is no measurement %q", name)
}

// measureAll runs one measurement, or all of them.
func measureAll(name string, args []string) (err error) {
	var o options
	f := flag.NewFlagSet("bench "+name, flag.ExitOnError)
	f.StringVar(&o.device, "d", "soft-lo", "device")
	f.DurationVar(&o.duration, "t", 2*time.Second, "time of each measurement, after a warm-up")
	f.StringVar(&o.only, "only", "", "measure only this row of connections, such as idle, or only RC or SRD in srd")
	f.IntVar(&o.rounds, "rounds", 3, "number of rounds; each round measures all alternatives in turn")
	f.IntVar(&o.connections, "connections", 5000, "largest number of connections in connections, dials, scale and srd")
	f.IntVar(&o.receives, "receives", 0, "receives of no bytes that each connection of scale has")
	f.StringVar(&o.profile, "cpuprofile", "", "file for a CPU profile of the first process")
	f.BoolVar(&o.counters, "counters", false, "show the counters of each device when it is closed")
	f.StringVar(&o.prefix, "peer-prefix", "", "`words` before the command of the second process, such as 'taskset 2'")
	f.BoolVar(&o.serve, "serve", false, "run as the second process of scale")
	_ = f.Parse(args) // exits on an error
	if f.NArg() > 0 || o.connections < 1 || o.rounds < 1 || o.duration <= 0 {
		fmt.Fprintln(os.Stderr, "bench: rounds and connections must be 1 or more, times must be positive, and no arguments are allowed; see -help")
		os.Exit(2)
	}
	if o.serve {
		return serveMany(o, os.Stdin, os.Stdout)
	}
	stop, err := profile.Start(o.profile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	fmt.Printf("device %s, %d CPUs, %s\n", o.device, runtime.NumCPU(), runtime.Version())
	for _, m := range measurements {
		if name != "all" && name != m.name {
			continue
		}
		figures, err := m.run(o)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		fmt.Printf("%-11s %s\n            (%s)\n", m.name, figures, m.about)
	}
	return nil
}
