// Package simulation measures the simulator (soft/sim), and what does not fit on a machine: thousands
// of senders to one receiver. Times are those of the simulation unless a table says otherwise.
// Everything but processor times and memory follows from the seed.
package simulation

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/bench/internal/profile"
)

type options struct {
	seed    uint64
	full    bool
	only    string
	profile string

	operations int // of each row of speed
	idleHosts  int
	idle       time.Duration

	senders      []int
	size, window int     // of writes, in KiB, and of each connection
	rate         float64 // of links, in Gbit/s
	latency      time.Duration
	queue, mark  int // of a switch, in KiB
	time, warmUp time.Duration
}

// measurement is one of the tables.
type measurement struct {
	name, about string
	run         func(options) (string, error)
}

var measurements = []measurement{
	{"speed", "the simulator", measureSpeeds},
	{"incast", "many senders to one receiver", measureIncast},
}

// Run runs bench sim.
func Run(ctx context.Context, args []string) (err error) {
	o, err := parse(args)
	if err != nil {
		return err
	}
	stop, err := profile.Start(o.profile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	fmt.Printf("seed %d, %d CPUs, %s\n", o.seed, runtime.NumCPU(), runtime.Version())
	for _, m := range measurements {
		if o.only != "" && !slices.Contains(strings.Split(o.only, ","), m.name) || ctx.Err() != nil {
			continue
		}
		began := time.Now()
		text, err := m.run(o)
		fmt.Printf("\n%s: %s (took %.1f s)\n\n%s", m.name, m.about, time.Since(began).Seconds(), text)
		if err != nil {
			return fmt.Errorf("%s, seed %d: %w", m.name, o.seed, err)
		}
	}
	return ctx.Err()
}

func parse(args []string) (o options, err error) {
	f := flag.NewFlagSet("bench sim", flag.ExitOnError)
	f.Uint64Var(&o.seed, "seed", 1, "seed")
	f.BoolVar(&o.full, "full", false, "speed: more rows; takes much longer")
	f.StringVar(&o.only, "only", "", "only these `tables`, separated by commas: "+names())
	f.StringVar(&o.profile, "cpuprofile", "", "`file` for a CPU profile")
	f.IntVar(&o.operations, "operations", 20000, "speed: operations of each row")
	f.IntVar(&o.idleHosts, "idle-hosts", 1000, "speed: hosts without connections")
	f.DurationVar(&o.idle, "idle", time.Hour, "speed: time without connections")
	senders := f.String("senders", "256", "incast: `numbers` of senders, separated by commas")
	f.IntVar(&o.size, "size", 64, "incast: size of writes in `KiB`")
	f.IntVar(&o.window, "window", 1, "incast: writes of each sender under way")
	f.Float64Var(&o.rate, "rate", 25, "incast: rate of links in `Gbit/s`")
	f.DurationVar(&o.latency, "latency", 2*time.Microsecond, "incast: latency of each link")
	f.IntVar(&o.queue, "queue", 512, "incast: queue of each port of the switch in `KiB`")
	f.IntVar(&o.mark, "mark", 128, "incast: `KiB` in the queue from which packets are marked")
	f.DurationVar(&o.warmUp, "warm-up", 200*time.Millisecond, "incast: simulated time before the measurement")
	f.DurationVar(&o.time, "time", 50*time.Millisecond, "incast: simulated time of the measurement")
	_ = f.Parse(args) // exits on an error
	for n := range strings.SplitSeq(*senders, ",") {
		i, err := strconv.Atoi(n)
		if err != nil || i < 1 {
			return o, fmt.Errorf("-senders has %q", n)
		}
		o.senders = append(o.senders, i)
	}
	for name := range strings.SplitSeq(o.only, ",") {
		if name != "" && !strings.Contains(names(), name) {
			return o, fmt.Errorf("-only has %q, which is none of %s", name, names())
		}
	}
	if f.NArg() > 0 || o.operations < 1 || o.idleHosts < 1 {
		return o, errors.New("numbers must be 1 or more, and there are no arguments; see -help")
	}
	return o, nil
}

// names lists the tables.
func names() string {
	var list []string
	for _, m := range measurements {
		list = append(list, m.name)
	}
	return strings.Join(list, ", ")
}
