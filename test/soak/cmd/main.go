// Command soak runs a server of several services on software devices for a long time. Clients
// come and go: they connect, move data both ways, leave, come again, are killed and stopped,
// while faults are switched on and off at both ends. A few clients stay all the time. Every
// byte is checked. At each quiet point only the clients that stay are left. The memory, files,
// goroutines, connections and buffers of the server and of these clients are then compared
// with those of earlier quiet points.
//
// It exits with code 1 and the reasons if anything has gone wrong. It measures no speed, and
// has no deadlines but -patience, which ends what hangs.
//
// The controller starts the server and the clients, all of them this program, and draws from
// -seed what happens to them. The processes also draw from it what they do; when they do it
// depends on the machine.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/internal/interrupt"
	"github.com/verbena-rdma/verbena/internal/version"
)

const (
	exitFailed = 1
	exitUsage  = 2
	exitOrphan = 3
)

// patience is how long any step may take. It ends what hangs.
var patience = 10 * time.Minute

// beatEvery is how often a process reports what it has done.
const beatEvery = time.Second

type options struct {
	time    time.Duration
	quiet   time.Duration
	clients int
	seed    uint64
	hasty   bool
	gentle  bool
	verbose bool

	services string
}

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	var o options
	var child, config string
	flags := flag.NewFlagSet("soak", flag.ContinueOnError)
	flags.DurationVar(&o.time, "time", time.Hour, "duration of the run; the last quiet point follows")
	flags.DurationVar(&o.quiet, "quiet", time.Minute, "time from one quiet point to the next")
	flags.IntVar(&o.clients, "clients", 8, "number of concurrent clients, besides those that stay")
	flags.Uint64Var(&o.seed, "seed", 0, "seed of all random choices; 0: a different one each time")
	flags.DurationVar(&patience, "patience", patience, "time after which an operation counts as hung")
	flags.BoolVar(&o.hasty, "hasty", false, "at every quiet point the server closes half-made connections of dead clients, which at every fifth it gives a minute otherwise")
	flags.StringVar(&o.services, "services", "", "services to run, separated by commas, such as udp,srd (default: all)")
	flags.StringVar(&profiles, "profiles", "", "`folder` for a profile of the server's heap at each quiet point")
	flags.BoolVar(&o.gentle, "gentle", false, "no client is killed or stopped")
	flags.BoolVar(&o.verbose, "v", false, "show every process that starts and ends")
	flags.StringVar(&child, "child", "", "for the processes that it starts: server or client")
	flags.StringVar(&config, "config", "", "for a client: its configuration")
	flags.StringVar(&sabotage, "sabotage", "", "for tests: the fault to inject, which the run must detect")
	showVersion := flags.Bool("version", false, "print the version, and exit")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return exitUsage
	}
	if *showVersion {
		fmt.Println("soak", version.String())
		return 0
	}
	if flags.NArg() > 0 || o.time <= 0 || o.quiet <= 0 || patience <= 0 || o.clients < 1 || o.clients > serverPlaces/clientPlaces {
		fmt.Fprintf(os.Stderr, "soak: -time, -quiet and -patience must be positive, -clients 1 to %d, and no arguments are allowed\n", serverPlaces/clientPlaces)
		return exitUsage
	}
	if o.services != "" {
		chosen = strings.Split(o.services, ",")
		for _, name := range chosen {
			if !slices.ContainsFunc(services(true), func(s service) bool { return s.name == name }) {
				fmt.Fprintf(os.Stderr, "soak: there is no service %q\n", name)
				return exitUsage
			}
		}
	}
	err := error(nil)
	switch child {
	case "server":
		err = runServer(o.seed, newEventWriter(os.Stdout))
	case "client":
		var cfg clientConfig
		if err = json.Unmarshal([]byte(config), &cfg); err == nil {
			err = runClient(cfg, newEventWriter(os.Stdout))
		}
	case "":
		if o.seed == 0 {
			o.seed = rand.Uint64()
		}
		ctx, stop := interrupt.Context(context.Background())
		defer stop()
		err = control(ctx, o, os.Stdout)
	default:
		fmt.Fprintf(os.Stderr, "soak: -child is %q, want server or client\n", child)
		return exitUsage
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "soak: %v\n", err)
		return exitFailed
	}
	return 0
}
