package sim

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/cryptotest"

	"github.com/verbena-rdma/verbena/soft/internal/inorder"
)

// The flags of a test binary that uses this package.
type flags struct {
	seed     *uint64
	seeds    *int
	shrink   *int
	repeat   *bool
	coverage *bool
	log      *string
	pcap     *string
}

var testFlags = registerFlags()

func registerFlags() flags {
	if !testing.Testing() {
		return flags{seed: new(uint64), seeds: new(int), shrink: new(int), repeat: new(bool), coverage: new(bool), log: new(string), pcap: new(string)}
	}
	return flags{
		seed:     flag.Uint64("sim.seed", 0, "repeat simulations with this `seed` only"),
		seeds:    flag.Int("sim.seeds", 0, "run simulations with this `number` of seeds, whatever the test asks for"),
		shrink:   flag.Int("sim.shrink", 100, "repeat a seed that fails with fewer and shorter faults, this `number` of times at most"),
		repeat:   flag.Bool("sim.repeat", false, "run each seed twice, and fail if the runs differ"),
		coverage: flag.Bool("sim.coverage", false, "print how often simulations reached the states that Sometimes and Reached name"),
		log:      flag.String("sim.log", "", "with -sim.seed: write all events to this `file`"),
		pcap:     flag.String("sim.pcap", "", "with -sim.seed: write the packets of each host to files in this `folder`, for tshark"),
	}
}

// Check runs a test in as many simulations as seeds says, with the seeds from 1 on, several at
// a time, each in virtual time. It stops at the first seed that fails, and says how to repeat
// it. If a [Nemesis] caused faults, Check then repeats the seed with faults left out, shortened, and moved
// to fewer hosts, and prints the smallest schedule that still fails, as a test that calls [Replay], too.
// It runs the first seed twice, and fails if the runs differ: then something other than the
// seed decides what happens (see the package comment).
//
// The flags of the test binary change that: -sim.seeds sets the number of seeds, -sim.seed
// runs a single one, -sim.log and -sim.pcap record it, -sim.shrink sets how often a failing seed is
// repeated at most, and with -sim.repeat all seeds run twice. -sim.coverage
// prints how often the states were reached that [Sim.Sometimes] names.
func Check(t *testing.T, seeds int, test func(s *Sim)) {
	t.Helper()
	check(t, seeds, test, true)
}

// check is Check. If repeats is false, runs of a seed may differ, and one runs at a time.
func check(t *testing.T, seeds int, test func(s *Sim), repeats bool) {
	t.Helper()
	if r := replayOf(t); r != nil {
		runRecorded(t, fmt.Sprint("replay of seed ", r.seed), r.seed, r.prepare, test)
		return
	}
	var covered coverage
	defer func() {
		t.Helper()
		if *testFlags.coverage || covered.runs > 1 {
			covered.report(t, *testFlags.coverage)
		}
	}()
	if seed := *testFlags.seed; seed != 0 {
		s, ok := runRecorded(t, fmt.Sprint("seed ", seed), seed, func(*Sim) {}, test)
		covered.add(s)
		if !ok && *testFlags.log == "" && *testFlags.pcap == "" {
			shrink(t, s, test)
		}
		return
	}
	if n := *testFlags.seeds; n > 0 {
		seeds = n
	}
	if seeds < 1 {
		return
	}
	var next atomic.Uint64
	parallel := 1
	if repeats {
		parallel = runtime.GOMAXPROCS(0)
		s, ok := checkRepeats(t, next.Add(1), test)
		if !ok {
			shrink(t, s, test)
			return
		}
		covered.add(s)
	}
	var failing lowest
	var workers sync.WaitGroup
	for range min(parallel, seeds-int(next.Load())) {
		workers.Go(func() {
			for seed := next.Add(1); seed <= uint64(seeds) && !t.Failed(); seed = next.Add(1) {
				var s *Sim
				var ok bool
				if *testFlags.repeat && repeats {
					s, ok = checkRepeats(t, seed, test)
				} else {
					s, ok = run(t, fmt.Sprint("seed ", seed), seed, nil, test)
				}
				if !ok {
					failing.add(s)
					return
				}
				covered.add(s)
			}
		})
	}
	workers.Wait()
	shrink(t, failing.s, test)
}

// CheckSerial is [Check] for programs with ordinary goroutines. One seed runs at a time, on one processor.
// From the seed follow
//
//   - the order in which goroutines go on, and the case that a select takes;
//   - where a loop over a map of up to eight entries begins;
//   - the order of timers of package time that are due at once;
//   - the numbers of math/rand/v2 and crypto/rand.
//
// The whole process is in order meanwhile, so it is not for parallel tests. Garbage is collected only
// between runs, and when the process has 2 GB. What is left to chance:
//
//   - maps with more entries: their order depends on the process and, for pointers, on their addresses;
//   - files and sockets of the system, and collections of garbage;
//   - locks that a goroutine waits for longer than a millisecond of real time, and those of the runtime where
//     it waits for another thread;
//   - what happens when the process waits for some milliseconds. Where two such runs differ, they are
//     repeated, up to three times.
//
// With the race detector, and other than with Go 1.26 on Linux, amd64 or arm64, nothing is in order, and each
// seed runs once.
func CheckSerial(t *testing.T, seeds int, test func(s *Sim)) {
	t.Helper()
	if !inorder.Known() {
		const why = "sim: CheckSerial cannot put goroutines in order: it needs Go 1.26 on Linux, amd64 or arm64, without the race detector"
		if *testFlags.repeat {
			t.Fatal(why + "; leave out -sim.repeat, or use such a system")
		}
		t.Log(why + "; each seed runs once")
		check(t, seeds, test, false)
		return
	}
	cryptotest.SetGlobalRandom(t, 0) // panics if the test is parallel
	o := inorder.Begin()
	defer o.End()
	inOrder := func(s *Sim) {
		o.Collect()
		cryptotest.SetGlobalRandom(t, s.seed)
		s.order = o
		o.Seed(s.seed, 0, 0)
		test(s)
	}
	check(t, seeds, inOrder, true)
}

// lowest keeps the simulation with the lowest seed.
type lowest struct {
	mu sync.Mutex
	s  *Sim
}

func (l *lowest) add(s *Sim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s != nil && (l.s == nil || s.seed < l.s.seed) {
		l.s = s
	}
}

// run runs one simulation, and prints how to repeat it if it fails. It returns nil if go test leaves it
// out, by -run or -failfast.
func run(t *testing.T, name string, seed uint64, prepare func(*Sim), test func(s *Sim)) (s *Sim, ok bool) {
	ok = t.Run(name, func(sub *testing.T) {
		sub.Cleanup(func() {
			if sub.Failed() {
				sub.Logf("sim: seed %d fails; repeat it with: go test -run '%s' -sim.seed=%d", seed, runPattern(t.Name()), seed)
				if s != nil && s.order != nil {
					sub.Log("sim: that is another process, in which maps of more than eight entries may have another order")
				}
			}
		})
		var inner *testing.T
		left := inBubbleOf(sub, func(b *testing.T) {
			inner = b
			s = New(b, seed)
			if prepare != nil {
				prepare(s)
			}
			test(s)
		})
		reportLeft(sub, seed, left)
		if inner.Skipped() { // synctest.Test does not say so
			sub.SkipNow()
		}
	})
	return s, ok
}

// runPattern returns the pattern by which go test -run finds one test.
func runPattern(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

// checkRepeats runs a seed twice, and reports whether both runs pass. If they do and differ, it returns
// no simulation, or repeats them, up to three times, if they were disturbed.
func checkRepeats(t *testing.T, seed uint64, test func(s *Sim)) (*Sim, bool) {
	for pair := 1; ; pair++ {
		first, ok := run(t, fmt.Sprint("seed ", seed), seed, func(s *Sim) { s.trace.keep = true }, test)
		if !ok || first == nil {
			return first, ok
		}
		disturbed := first.order.Disturbed()
		second, ok := run(t, fmt.Sprint("seed ", seed, " again"), seed, func(s *Sim) { s.trace.expect = first.trace.records }, test)
		if !ok || second == nil {
			return second, ok
		}
		disturbed = disturbed || second.order.Disturbed()
		second.trace.end()
		switch {
		case second.trace.differs == nil && first.trace.digest == second.trace.digest:
			return second, true
		case disturbed && pair < 4:
			continue
		case second.trace.differs != nil:
			t.Errorf("sim: two runs of seed %d differ: %v", seed, whyDiffers(first, second, test))
		default:
			t.Errorf("sim: two runs of seed %d differ in their faults, or after %d events", seed, len(first.trace.records))
		}
		if disturbed {
			t.Logf("sim: all %d pairs of runs were disturbed: the process waited, or its thread changed. Repeat it on a machine with less work, without files and sockets of the system", pair)
		}
		return nil, false
	}
}

// whyDiffers says where a run differs from an earlier one, and what may be the cause. A third run finds the
// goroutines that are ready then, unless it differs before.
func whyDiffers(first, second *Sim, test func(s *Sim)) string {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // so that none is done before it is seen
	d, ready := second.trace.differs, map[string]struct{}{}
	simulate(second.seed, func(s *Sim) {
		x := s.trace
		x.expect, x.watch, x.ready = first.trace.records, d.number, ready
		test(s)
	})
	text := d.String() + "; something other than the seed decides what happens. "
	if len(ready) > 0 {
		text += "Before that, these goroutines worked:\n\t" + strings.Join(slices.Sorted(maps.Keys(ready)), "\n\t") + "\n"
	}
	if second.order != nil {
		return text + "CheckSerial says what is left to chance"
	}
	return text + "If several work at the same time, start them by Host.Go and let them wait by Host.Sleep, or use CheckSerial, which also orders select and maps. Take time, random numbers and files from the Host"
}

// runRecorded runs one seed, with the log and the captures that the flags ask for.
func runRecorded(t *testing.T, name string, seed uint64, prepare func(s *Sim), test func(s *Sim)) (s *Sim, ok bool) {
	var prepared error
	s, ok = run(t, name, seed, func(s *Sim) {
		prepare(s)
		x := s.trace
		if *testFlags.log != "" {
			x.log, prepared = x.newLimitedWriter(*testFlags.log)
		}
		if x.pcaps = *testFlags.pcap; x.pcaps != "" && prepared == nil {
			prepared = os.MkdirAll(x.pcaps, 0o755)
		}
	}, test)
	if prepared != nil {
		t.Errorf("sim: cannot record the run: %v", prepared)
	}
	return s, ok
}
