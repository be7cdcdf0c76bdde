package sim

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Replay runs a test that calls [Check], with one seed, and with a schedule in place of the faults that
// the seed draws. Check prints calls of Replay for schedules that it has made small.
func Replay(t *testing.T, seed uint64, test func(t *testing.T), schedule Schedule) {
	t.Helper()
	replays.Store(t.Name(), &replayed{seed, schedule})
	t.Cleanup(func() { replays.Delete(t.Name()) }) // after parallel subtests
	test(t)
}

// replays has what Check is to replay, by the name of the test. Check is called by a function of the
// test's, to which nothing else leads.
var replays sync.Map

type replayed struct {
	seed     uint64
	schedule Schedule
}

func replayOf(t *testing.T) *replayed {
	for name, more := t.Name(), true; more; {
		if r, ok := replays.Load(name); ok {
			return r.(*replayed)
		}
		i := strings.LastIndexByte(name, '/')
		if more = i >= 0; more {
			name = name[:i]
		}
	}
	return nil
}

func (r *replayed) prepare(s *Sim) { s.replays, s.replay = true, r.schedule }

// shrinker looks for a small schedule with which a seed fails in the same way.
type shrinker struct {
	seed    uint64
	test    func(s *Sim)
	runs    int // so far
	most    int
	end     time.Time // when to stop; zero: never
	stopped bool      // by most or end
	failure string    // what all schedules that count fail with
	tried   map[string]bool
}

// shrink makes the schedule of a failed simulation small, and prints it.
func shrink(t *testing.T, failed *Sim, test func(s *Sim)) {
	t.Helper()
	if failed == nil || len(failed.schedule) == 0 || *testFlags.shrink <= 0 {
		return
	}
	k := &shrinker{seed: failed.seed, test: test, most: *testFlags.shrink, tried: make(map[string]bool)}
	if d, ok := t.Deadline(); ok {
		k.end = time.Now().Add(time.Until(d) / 2)
	}
	_, o := k.run(failed.schedule, nil)
	if k.failure = o.signature(); k.failure == "" {
		t.Logf("sim: seed %d passes when its %d faults are replayed: they cannot be made fewer", k.seed, len(failed.schedule))
		return
	}
	small := k.shrink(failed.schedule)
	var b strings.Builder
	fmt.Fprintf(&b, "sim: seed %d fails with %d of its %d faults, found in %d runs:\n", k.seed, len(small), len(failed.schedule), k.runs)
	for _, f := range small {
		fmt.Fprintf(&b, "\t%v\n", f)
	}
	if k.stopped {
		b.WriteString("The search for fewer and shorter ones was stopped: by -sim.shrink, or since the test has no more time.\n")
	}
	k.explain(&b, small)
	name, _, _ := strings.Cut(t.Name(), "/")
	fmt.Fprintf(&b, "As a test:\n\nfunc %sSeed%d(t *testing.T) {\n\tsim.Replay(t, %d, %s, %s)\n}\n", name, k.seed, k.seed, name,
		strings.ReplaceAll(small.GoString(), "\n", "\n\t"))
	t.Log(b.String())
}

// run repeats the seed with a schedule.
func (k *shrinker) run(schedule Schedule, prepare func(s *Sim)) (s *Sim, o *outcome) {
	k.runs++
	o = simulate(k.seed, func(sim *Sim) {
		s = sim
		(&replayed{k.seed, schedule}).prepare(s)
		if prepare != nil {
			prepare(s)
		}
		k.test(s)
	})
	return s, o
}

// fails reports whether the seed fails in the same way with a schedule.
func (k *shrinker) fails(schedule Schedule) bool {
	key := schedule.GoString()
	if k.stopped = k.runs >= k.most || !k.end.IsZero() && time.Now().After(k.end); k.stopped || k.tried[key] {
		return false
	}
	k.tried[key] = true
	_, o := k.run(schedule, nil)
	return o.signature() == k.failure
}

// shrink leaves out faults, and makes those simpler that are left, until neither is possible.
func (k *shrinker) shrink(best Schedule) Schedule {
	try := func(c Schedule) bool {
		if !k.fails(c) {
			return false
		}
		best = c
		return true
	}
	for again := true; again; {
		again = false
		for size := len(best); size > 0; size /= 2 {
			for i := 0; i < len(best); {
				if try(slices.Delete(slices.Clone(best), i, min(i+size, len(best)))) {
					again = true
				} else {
					i += size
				}
			}
		}
		for i := range best {
			for _, f := range best[i].simpler() {
				c := slices.Clone(best)
				c[i] = f
				slices.SortStableFunc(c, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
				if try(c) {
					again = true
					break
				}
			}
		}
	}
	return best
}

// explain says where the run without the last fault first differs.
func (k *shrinker) explain(b *strings.Builder, small Schedule) {
	if len(small) == 0 {
		return
	}
	failing, _ := k.run(small, func(s *Sim) { s.trace.keep = true })
	without, o := k.run(small[:len(small)-1], func(s *Sim) { s.trace.expect = failing.trace.records })
	if d := without.trace.differs; d != nil && o.err() == nil {
		fmt.Fprintf(b, "Without the last fault it passes. The first difference is at %v: %s in the run that fails, %s in the one that passes.\n", d.at, d.first, d.second)
	}
}

var numbers = regexp.MustCompile(`\d+`)

// signature tells failures of one kind from others: the place of an assertion, or else the first line
// of the message without its numbers. Empty: none.
func (o *outcome) signature() string {
	if err := o.err(); err != nil {
		line, _, _ := strings.Cut(err.Error(), "\n")
		if strings.HasPrefix(line, "Error Trace:") {
			return line
		}
		return numbers.ReplaceAllString(line, "#")
	}
	return ""
}
