package sim

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// The flags of a test binary that uses this package.
type flags struct {
	seed  *uint64
	seeds *int
	log   *string
	pcap  *string
}

var testFlags = registerFlags()

func registerFlags() flags {
	if !testing.Testing() {
		return flags{seed: new(uint64), seeds: new(int), log: new(string), pcap: new(string)}
	}
	return flags{
		seed:  flag.Uint64("sim.seed", 0, "repeat simulations with this `seed` only"),
		seeds: flag.Int("sim.seeds", 0, "run simulations with this `number` of seeds, whatever the test asks for"),
		log:   flag.String("sim.log", "", "with -sim.seed: write all events to this `file`"),
		pcap:  flag.String("sim.pcap", "", "with -sim.seed: write the packets of each host to files in this `folder`, for tshark"),
	}
}

// Check runs a test in as many simulations as seeds says, with the seeds from 1 on, several at
// a time, each in virtual time. It stops at the first seed that fails, and says how to repeat
// it. It runs the first seed twice, and fails if the runs differ: then something other than the
// seed decides what happens (see the package comment).
//
// The flags of the test binary change that: -sim.seeds sets the number of seeds, -sim.seed
// runs a single one, -sim.log and -sim.pcap record it.
func Check(t *testing.T, seeds int, test func(s *Sim)) {
	t.Helper()
	if seed := *testFlags.seed; seed != 0 {
		repeat(t, seed, test)
		return
	}
	if n := *testFlags.seeds; n > 0 {
		seeds = n
	}
	if seeds < 1 || !checkRepeats(t, test) {
		return
	}
	var next atomic.Uint64
	next.Store(1)
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), seeds-1) {
		workers.Go(func() {
			for seed := next.Add(1); seed <= uint64(seeds) && !t.Failed(); seed = next.Add(1) {
				run(t, fmt.Sprint("seed ", seed), seed, nil, test)
			}
		})
	}
	workers.Wait()
}

// run runs one simulation, and prints how to repeat it if it fails.
func run(t *testing.T, name string, seed uint64, prepare func(*trace), test func(s *Sim)) (ok bool) {
	return t.Run(name, func(sub *testing.T) {
		sub.Cleanup(func() {
			if sub.Failed() {
				sub.Logf("sim: seed %d fails; repeat it with: go test -run '%s' -sim.seed=%d", seed, runPattern(t.Name()), seed)
			}
		})
		var inner *testing.T
		left := inBubbleOf(sub, func(b *testing.T) {
			inner = b
			s := New(b, seed)
			if prepare != nil {
				prepare(s.trace)
			}
			test(s)
		})
		reportLeft(sub, seed, left)
		if inner.Skipped() { // synctest.Test does not say so
			sub.SkipNow()
		}
	})
}

// runPattern returns the pattern by which go test -run finds one test.
func runPattern(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

// checkRepeats runs the first seed twice, and reports whether both runs pass.
func checkRepeats(t *testing.T, test func(s *Sim)) bool {
	var first *trace
	if !run(t, "seed 1", 1, func(x *trace) { first, x.keep = x, true }, test) {
		return false
	}
	var second *trace
	if !run(t, "seed 1 again", 1, func(x *trace) { second, x.expect = x, first.records }, test) {
		return false
	}
	switch {
	case second.differs != "":
		t.Errorf("sim: two runs of seed 1 differ: %s; something other than the seed decides what happens", second.differs)
		return false
	case first.digest != second.digest:
		t.Errorf("sim: two runs of seed 1 differ: the second one ends earlier, or they differ after %d events", len(first.records))
		return false
	}
	return true
}

// repeat runs one seed, with the log and the captures that the flags ask for.
func repeat(t *testing.T, seed uint64, test func(s *Sim)) {
	var prepared error
	run(t, fmt.Sprint("seed ", seed), seed, func(x *trace) {
		if *testFlags.log != "" {
			x.log, prepared = newLimitedWriter(*testFlags.log)
		}
		if x.pcaps = *testFlags.pcap; x.pcaps != "" && prepared == nil {
			prepared = os.MkdirAll(x.pcaps, 0o755)
		}
	}, test)
	if prepared != nil {
		t.Errorf("sim: cannot record the run: %v", prepared)
	}
}
