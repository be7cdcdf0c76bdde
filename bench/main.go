// Command bench measures the SDK on a device: the rate of small writes within one
// process, bandwidth and latency of writes between two processes, and what the
// ways to wait cost. The second process is the same program, started by the first.
//
// Every measurement begins with a warm-up. What it prints are figures of this
// machine at this moment: compare ratios of one run, not figures of two.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"time"

	"github.com/verbena-rdma/verbena/internal/version"
)

type options struct {
	device   string
	duration time.Duration
	size     int
	window   int
	mtu      int
	run      string // the measurement
	profile  string
	counters bool
	style    string
	peer     string // what the second process does
	prefix   string // words before the command of the second process

	rounds      int           // of loss and connections
	connections int           // of the measurement of that name
	ackTimeout  time.Duration // of the first process; zero: the default
}

// measurement is one of the things measured. run returns the figures, in words.
type measurement struct {
	name  string
	about string
	run   func(options) (string, error)
	peer  func(options) error // nil: it needs no second process
}

var measurements = []measurement{
	{"write_rate", "8-byte writes, batched, both ends in one process", writeRate, nil},
	{"write_bw", "large writes to another process", bandwidth, servePassive},
	{"read_bw", "large reads from another process", bandwidth, servePassive},
	{"send_bw", "large messages to another process, which polls", bandwidth, serveReceives},
	{"write_lat", "8-byte writes back and forth between two processes, half a round trip", writeLatency, servePing},
	{"styles", "8-byte messages back and forth between two processes, half a round trip, by the way to wait", compareStyles, serveStyle},
	{"loss", "writes to another process while each end drops packets, by AckTimeout", compareLoss, servePassive},
	{"connections", "what connections cost that have nothing to do", manyConnections, nil},
	{"scale", "connections to another process, by how many: set-up, memory, rate, fairness, one beside the others", measureScale, serveScale},
	{"dials", "connections by address, both ends in one process", dialRates, nil},
	{"srd", "SRD beside RC by the verbs, both ends in one process, and on one goroutine where there is one peer: rate, bandwidth, round trip; then SRD's share of RC", compareSRD, nil},
	{"cores", "8-byte writes, batched, by engines on one device, each with both ends of its connection", compareCores, nil},
}

const warmUp = 300 * time.Millisecond

func main() {
	var o options
	flag.StringVar(&o.device, "d", "soft-lo", "device")
	flag.DurationVar(&o.duration, "t", 2*time.Second, "time of each measurement, after a warm-up")
	flag.IntVar(&o.size, "size", 1<<20, "bytes of a large write, read or message")
	flag.IntVar(&o.window, "window", 8, "large writes, reads or messages in flight")
	flag.IntVar(&o.mtu, "mtu", 0, "path MTU in bytes (default: what the link allows)")
	flag.StringVar(&o.run, "run", "", "the one measurement to run, such as write_bw")
	flag.StringVar(&o.style, "style", "", "the one style of styles: poll, run, sleep, event or await; or the one row of connections, such as idle; or RC or SRD in srd")
	flag.DurationVar(&o.ackTimeout, "ack-timeout", 0, "AckTimeout of the first process (default: what the device chooses)")
	flag.IntVar(&o.rounds, "rounds", 3, "how often loss, connections, dials and srd measure each of what they compare, in turns")
	flag.IntVar(&o.connections, "connections", 5000, "how many there are at most in connections, dials and srd")
	flag.StringVar(&o.profile, "cpuprofile", "", "file for a CPU profile of the first process")
	flag.BoolVar(&o.counters, "counters", false, "show the counters of each device when it is closed")
	flag.StringVar(&o.prefix, "peer-prefix", "", "`words` before the command of the second process, such as 'taskset 2'")
	flag.StringVar(&o.peer, "peer", "", "for the second process: the measurement it serves")
	showVersion := flag.Bool("version", false, "print the version, and exit")
	flag.Parse()
	if *showVersion {
		fmt.Println("bench", version.String())
		return
	}
	if flag.NArg() > 0 || o.size < 8 || o.window < 1 || o.connections < 1 || o.rounds < 1 || o.duration <= 0 {
		fmt.Fprintln(os.Stderr, "bench: sizes must be 8 or more, windows, rounds and connections 1 or more, times positive, and there are no arguments; see -help")
		os.Exit(2)
	}
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	if o.peer != "" {
		for _, m := range measurements {
			if m.name == o.peer && m.peer != nil {
				o.run = m.name
				return m.peer(o)
			}
		}
		return fmt.Errorf("no measurement %q has a peer", o.peer)
	}
	if o.profile != "" {
		f, err := os.Create(o.profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	fmt.Printf("device %s, %d CPUs, %s\n", o.device, runtime.NumCPU(), runtime.Version())
	only, found := o.run, false
	for _, m := range measurements {
		if only != "" && only != m.name {
			continue
		}
		found = true
		o.run = m.name
		figures, err := m.run(o)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		fmt.Printf("%-11s %s\n            (%s)\n", m.name, figures, m.about)
	}
	if !found {
		return fmt.Errorf("no measurement %q; there are write_rate, write_bw, read_bw, send_bw, write_lat, styles, loss, connections, dials and srd", only)
	}
	return nil
}
