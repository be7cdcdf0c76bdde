// Package incast measures many connections that share a link to one receiver, alternately with
// and without congestion control. It makes two network namespaces with a pair of veth
// interfaces between them. The senders' interface sends at most at -rate, and drops packets
// when its queue is full. Linux and root only.
//
//	go run ./bench incast -senders 64 -processes 4 -rounds 5
//
// It prints the received data as a share of the link's rate, Jain's index of fairness over the
// connections (1: all have the same; 1/n: one has everything), the packets dropped by the
// queue, and the counters of the devices. It asserts nothing.
package incast

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/bench/internal/veth"
)

type options struct {
	senders   int
	processes int
	operation string
	size      int
	window    int
	duration  time.Duration
	rounds    int
	rate      int // megabits a second; zero: no limit
	queue     int // packets
	mtu       int // of the interfaces
	variants  string
	verbose   bool

	child  string // the role of this process, if this program started it
	device string
}

// warmUp gives connections time to find their rate.
const warmUp = time.Second

// Run runs bench incast.
func Run(ctx context.Context, args []string) error {
	var o options
	f := flag.NewFlagSet("bench incast", flag.ExitOnError)
	f.IntVar(&o.senders, "senders", 64, "number of connections that carry data to the receiver")
	f.IntVar(&o.processes, "processes", 4, "number of processes that share these connections")
	f.StringVar(&o.operation, "op", "write", "write, send or read; with read, the receiver issues the operations")
	f.IntVar(&o.size, "size", 64<<10, "bytes of each operation")
	f.IntVar(&o.window, "window", 4, "operations in flight on each connection")
	f.DurationVar(&o.duration, "t", 3*time.Second, "time of each measurement, after a warm-up of 1s")
	f.IntVar(&o.rounds, "rounds", 3, "number of measurements of each variant")
	f.IntVar(&o.rate, "rate", 1000, "rate of the link, in `Mbit/s`; 0: unlimited")
	f.IntVar(&o.queue, "queue", 100, "capacity of the link's queue, in full-size `packets`")
	f.IntVar(&o.mtu, "mtu", 1500, "MTU of the interfaces, in `bytes`")
	f.StringVar(&o.variants, "variants", "congestion=on congestion=off congestion=on&mark=0.01", "device options to compare, separated by spaces")
	f.BoolVar(&o.verbose, "v", false, "write each figure to standard error as it comes")
	f.StringVar(&o.child, "child", "", "for the other processes: sender or receiver")
	f.StringVar(&o.device, "d", "", "for the other processes: the device")
	_ = f.Parse(args) // exits on an error
	wrong := o.senders < 1 || o.processes < 1 || o.processes > o.senders || o.size < 1 || o.window < 1 || o.rounds < 1 ||
		o.duration <= 0 || o.rate < 0 || o.queue < 1 || o.mtu < 576 || operations[o.operation] == nil || strings.TrimSpace(o.variants) == ""
	if f.NArg() > 0 || wrong {
		return errors.New("-op must be write, send or read, numbers must be positive, -processes must not exceed -senders, and no arguments are allowed; see -help")
	}
	if o.child != "" {
		return serve(ctx, o)
	}
	return run(ctx, o)
}

func run(ctx context.Context, o options) (err error) {
	l, err := veth.New(o.mtu)
	if err != nil {
		return err
	}
	defer func() {
		if e := l.Close(); err == nil {
			err = e
		}
	}()
	if o.rate > 0 {
		if err := l.Limit(o.rate, o.queue); err != nil {
			return err
		}
	}
	variants := strings.Fields(o.variants)
	results := make([][]figures, len(variants))
	for round := range o.rounds {
		for i, v := range variants {
			f, err := measure(ctx, o, l, v)
			if err != nil {
				return fmt.Errorf("round %d, %s: %w", round+1, v, err)
			}
			if o.verbose {
				fmt.Fprintf(os.Stderr, "%s: %v\n", v, f)
			}
			results[i] = append(results[i], f)
		}
	}
	fmt.Print(table(o, variants, results))
	return nil
}
