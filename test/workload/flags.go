package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/verbena-rdma/verbena/verbs"
)

// Limits of the flags.
const (
	maxSize        = 1 << 30
	maxSGE         = 16
	maxConnections = 8
	maxCount       = 1 << 30
)

// settings are the values of the flags.
type settings struct {
	operation      *operation
	requester      bool
	device         string
	gid            *int      // nil: the first usable one
	mtu            verbs.MTU // zero: what the link allows
	size           int       // bytes that each connection moves
	sge            int       // buffers in each task's list
	connections    int
	n, added       int           // additions to sync events: by the requester, or by each end in turns; by the responder itself
	ackTimeout     time.Duration // zero: the device's
	connectTimeout time.Duration
	timeout        time.Duration // zero: never
	oob            string
	log            zerolog.Logger
}

// parse parses the flags. With -h it prints them, and returns flag.ErrHelp.
func parse(args []string, stderr io.Writer) (settings, error) {
	s := settings{device: "soft-lo", sge: 1, connections: 1, added: 1, connectTimeout: 6 * time.Second, oob: "dir"}
	level := zerolog.InfoLevel
	given := map[string]bool{}
	f := flag.NewFlagSet("workload", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	f.Func("op", "the `operation`: "+strings.Join(operationNames(), ", "), func(v string) (err error) {
		s.operation, err = operationByName(v)
		return err
	})
	f.Func("as", "this end: `requester` or responder", func(v string) error {
		s.requester = v == "requester"
		return oneOf(v, "requester", "responder")
	})
	f.StringVar(&s.device, "d", s.device, "the `device`")
	f.Func("g", "the `index` of the local address in the GID table", func(v string) error {
		var gid int
		s.gid = &gid
		return number(&gid, v, 0, 1<<16)
	})
	f.Func("mtu", "the path MTU in `bytes`: 256, 512, 1024, 2048 or 4096", func(v string) error {
		n, err := strconv.Atoi(v)
		if s.mtu = verbs.MTU(n); err != nil || !s.mtu.Valid() {
			return errors.New("want 256, 512, 1024, 2048 or 4096")
		}
		return nil
	})
	f.Func("size", "how many `bytes` each connection moves; 0: an empty message", func(v string) error { return number(&s.size, v, 0, maxSize) })
	f.Func("sge", "the `number` of buffers in the list of each task", func(v string) error { return number(&s.sge, v, 1, maxSGE) })
	f.Func("nc", "the `number` of connections", func(v string) error { return number(&s.connections, v, 1, maxConnections) })
	f.Func("n", "sync_event, count: how many times to `add` to the event; with count, each end", func(v string) error { return number(&s.n, v, 0, maxCount) })
	f.Func("local", "sync_event: how many times the responder itself adds, on as many goroutines as there are connections (default 1)", func(v string) error { return number(&s.added, v, 0, maxCount) })
	f.Func("ack-timeout", "the `time` after which a request that was not acknowledged is repeated", func(v string) error { return duration(&s.ackTimeout, v) })
	f.Func("connect-timeout", "the `time` that the peer may take to connect (default 6s)", func(v string) error { return duration(&s.connectTimeout, v) })
	f.Func("timeout", "give up after that `time` (default: never)", func(v string) error { return duration(&s.timeout, v) })
	f.StringVar(&s.oob, "oob", s.oob, "how descriptors travel: dir, dir:PATH, tcp:HOST:PORT or stdio, the `way`")
	f.Func("l", "the `level` of the log: debug, info, warn or error", func(v string) (err error) {
		level, err = zerolog.ParseLevel(v)
		return errors.Join(err, oneOf(v, "debug", "info", "warn", "error"))
	})
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		f.SetOutput(stderr)
		f.PrintDefaults()
		return s, err
	} else if err != nil {
		return s, err
	}
	s.log = zerolog.New(zerolog.ConsoleWriter{Out: stderr, TimeFormat: "15:04:05", NoColor: true}).Level(level).With().Timestamp().Logger()
	f.Visit(func(g *flag.Flag) { given[g.Name] = true })
	switch {
	case f.NArg() > 0:
		return s, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case s.operation == nil:
		return s, errors.New("-op is missing: name the operation")
	case !given["as"]:
		return s, errors.New("-as is missing: requester or responder")
	case s.operation.shape == value && (given["size"] || given["sge"] || given["nc"] && s.operation.name != "sync_event"):
		return s, fmt.Errorf("-op %s works on one value of 8 bytes, so it cannot be used with -size, -sge or -nc (but sync_event with -nc)", s.operation.name)
	case s.operation.shares != event && (given["n"] || given["local"]):
		return s, fmt.Errorf("-op %s does not count: -n and -local are for sync_event and count", s.operation.name)
	}
	return s, nil
}

func oneOf(v string, list ...string) error {
	for _, w := range list {
		if v == w {
			return nil
		}
	}
	return fmt.Errorf("want one of %s", strings.Join(list, ", "))
}

func number(p *int, v string, low, high int) error {
	n, err := strconv.Atoi(v)
	if err != nil || n < low || n > high {
		return fmt.Errorf("want a number from %d to %d", low, high)
	}
	*p = n
	return nil
}

func duration(p *time.Duration, v string) error {
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 {
		return errors.New("want a time above zero, such as 10s")
	}
	*p = d
	return nil
}
