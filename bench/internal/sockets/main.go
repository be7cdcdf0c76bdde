// Package sockets measures package rsocket beside TCP, in turns, each between two processes: over
// the loopback interface, and between two network namespaces with a pair of veth interfaces
// (Linux, as root).
//
//	go run ./bench rsocket -rounds 5
//	go run ./bench rsocket-scale -connections 10000
//
// It prints tables, and asserts nothing.
package sockets

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

type options struct {
	duration time.Duration
	rounds   int
	only     string // measurements, by parts of their names
	ways     string // the same of ways
	mtu      int    // of the veth interfaces
	requests int    // HTTP requests at a time
	send     int    // bytes, as in rsocket.Config
	receive  int
	verbose  bool
	counters bool

	connections, busy, beside int // of rsocket-scale
	idle                      time.Duration

	child   bool   // this is one of the processes that are measured
	device  string // of a child; empty: TCP
	profile string // file names of CPU profiles of the children
}

// Run runs bench rsocket.
func Run(ctx context.Context, args []string) error {
	return start(ctx, "rsocket", args, func(f *flag.FlagSet, o *options) {
		f.IntVar(&o.mtu, "mtu", 1500, "MTU of the veth interfaces, in `bytes`")
		f.IntVar(&o.requests, "requests", 16, "HTTP `requests` at a time")
	}, compare)
}

// RunScale runs bench rsocket-scale.
func RunScale(ctx context.Context, args []string) error {
	return start(ctx, "rsocket-scale", args, func(f *flag.FlagSet, o *options) {
		f.IntVar(&o.connections, "connections", 10000, "number of idle connections")
		f.IntVar(&o.busy, "busy", 1000, "number of busy connections")
		f.IntVar(&o.beside, "beside", 100, "number of busy connections beside one whose reader has stopped")
		f.DurationVar(&o.idle, "idle", 15*time.Second, "`time` for which connections are idle")
	}, scale)
}

func start(ctx context.Context, name string, args []string, define func(*flag.FlagSet, *options), run func(context.Context, options) (string, error)) error {
	o := options{mtu: 1500, requests: 1, connections: 1, busy: 1, beside: 1, idle: 1}
	f := flag.NewFlagSet("bench "+name, flag.ExitOnError)
	define(f, &o)
	f.DurationVar(&o.duration, "t", time.Second, "`time` of each measurement, after a warm-up")
	f.IntVar(&o.rounds, "rounds", 5, "number of rounds; each round measures TCP and rsocket in turn")
	f.StringVar(&o.only, "only", "", "measure only what has all of these `words` in its name, such as 'loopback trip 64K' or 'idle'")
	f.StringVar(&o.ways, "ways", "", "measure only ways whose name contains this `text`, such as UDP")
	f.BoolVar(&o.verbose, "v", false, "write each figure to standard error as it comes")
	f.IntVar(&o.send, "send-buffer", 0, "Config.SendBuffer, in `bytes`; 0: the default")
	f.IntVar(&o.receive, "receive-buffer", 0, "Config.ReceiveBuffer, in `bytes`; 0: the default")
	f.BoolVar(&o.counters, "counters", false, "write the counters of each device to standard error at the end")
	f.BoolVar(&o.child, "child", false, "for the other processes")
	f.StringVar(&o.device, "d", "", "for the other processes: the device")
	f.StringVar(&o.profile, "cpuprofile", "", "`folder` for CPU profiles of the other processes")
	_ = f.Parse(args) // exits on an error
	wrong := o.rounds < 1 || o.duration <= 0 || o.mtu < 576 || o.requests < 1 || o.connections < 1 || o.busy < 1 || o.beside < 1 || o.idle <= 0
	if f.NArg() > 0 || wrong {
		return errors.New("numbers and times must be positive, -mtu at least 576, and no arguments are allowed; see -help")
	}
	if o.child {
		return serve(ctx, o)
	}
	text, err := run(ctx, o)
	fmt.Print(text)
	return err
}

// selected reports whether the flag -only selects a measurement.
func (o options) selected(name string) bool {
	return !slices.ContainsFunc(strings.Fields(o.only), func(w string) bool { return !strings.Contains(name, w) })
}

// note writes a figure to standard error.
func (o options) note(format string, args ...any) {
	if o.verbose {
		fmt.Fprintf(os.Stderr, format+"\n", args...)
	}
}

// choose returns the ways that the flag -ways selects.
func (o options) choose(ways []way) []way {
	return slices.DeleteFunc(slices.Clone(ways), func(w way) bool { return !strings.Contains(w.name, o.ways) })
}
