package sim

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// downTogether fails when two hosts are down at the same time.
func downTogether(s *Sim) {
	hosts := s.Hosts("h", 5)
	for _, h := range hosts {
		h.Run(untilEnd)
	}
	n := s.Nemesis(Chaos{MaxDown: 3, Interval: 200 * time.Millisecond, Longest: 2 * time.Second, Until: 20 * time.Second})
	s.RunUntil(func() bool {
		if hosts[1].Crashed() && hosts[2].stands() {
			s.Fatal("hosts 1 and 2 are down")
		}
		return n.Done()
	}, time.Minute)
}

// A schedule that is replayed makes the same run, and parts of it can be left out.
func TestReplaySchedule(t *testing.T) {
	for seed := range uint64(20) {
		var drawn, again *Sim
		test := func(s *Sim) {
			hosts := randomChaos(s)
			n := s.Nemesis(hosts)
			s.RunUntil(n.Done, time.Minute)
		}
		require.NoError(t, Simulate(seed, func(s *Sim) { drawn = s; s.trace.keep = true; test(s) }))
		k := &shrinker{seed: seed, test: test}
		again, o := k.run(drawn.schedule, func(s *Sim) { s.trace.expect = drawn.trace.records })
		require.NoError(t, o.err())
		require.Nil(t, again.trace.differs, "seed %d: %v", seed, again.trace.differs)
		require.Equal(t, drawn.schedule, again.schedule)
		require.Equal(t, drawn.nemeses, again.nemeses)
	}
}

// A schedule that is replayed keeps to the limits of its Chaos: faults that shrinking has moved together
// do not count.
func TestReplayKeepsLimits(t *testing.T) {
	var replay *Sim
	k := &shrinker{seed: 1, test: func(s *Sim) {
		for _, h := range s.Hosts("h", 3) {
			h.Run(untilEnd)
		}
		s.RunUntil(s.Nemesis(Chaos{MaxDown: 1, Until: time.Minute}).Done, time.Hour)
	}}
	both := Schedule{
		{At: time.Second, For: 2 * time.Second, Kind: Crash, Hosts: []string{"h0"}},
		{At: 2 * time.Second, For: 2 * time.Second, Kind: Pause, Hosts: []string{"h1"}},
		{At: 4 * time.Second, For: time.Second, Kind: Pause, Hosts: []string{"h2"}},
	}
	replay, o := k.run(both, nil)
	require.NoError(t, o.err())
	assert.Equal(t, Schedule{both[0], both[2]}, replay.schedule)
}

// Faults become shorter, but never last until the end of the chaos.
func TestSimplerFaults(t *testing.T) {
	for _, f := range (Fault{At: time.Second, For: 1500 * time.Microsecond, Hosts: []string{"a", "b"}}).simpler() {
		assert.Positive(t, f.For)
	}
}

// Shrinking finds the two faults that a failure needs.
func TestShrink(t *testing.T) {
	for seed := uint64(1); ; seed++ {
		require.Less(t, seed, uint64(100))
		var failed *Sim
		if Simulate(seed, func(s *Sim) { failed = s; downTogether(s) }) == nil {
			continue
		}
		k := &shrinker{seed: seed, test: downTogether, most: 1000, tried: make(map[string]bool)}
		_, o := k.run(failed.schedule, nil)
		k.failure = o.signature()
		require.Contains(t, k.failure, "hosts # and # are down")
		small := k.shrink(failed.schedule)
		require.Len(t, small, 2)
		for _, f := range small {
			assert.Len(t, f.Hosts, 1)
			assert.Zero(t, (f.At+f.For)%time.Millisecond, "%v", f)
			assert.Contains(t, []FaultKind{Crash, Pause}, f.Kind)
		}
		var b strings.Builder
		k.explain(&b, small)
		assert.Contains(t, b.String(), "Without the last fault it passes.")
		return
	}
}

// The bound on the number of runs holds.
func TestShrinkStops(t *testing.T) {
	k := &shrinker{seed: 1, most: 3, tried: make(map[string]bool), failure: "too many", test: func(s *Sim) {
		if len(s.replay) > 10 {
			s.Error("too many")
		}
	}}
	many := make(Schedule, 100)
	for i := range many {
		many[i] = Fault{At: time.Duration(i) * time.Second, For: time.Hour, Hosts: []string{"a"}}
	}
	k.shrink(many)
	assert.Equal(t, 3, k.runs)
}

func TestScheduleAsText(t *testing.T) {
	s := Schedule{
		{At: 2458 * time.Millisecond, For: time.Second, Kind: Crash, Hosts: []string{"a"}},
		{Nemesis: 1, At: 7, For: 3 * time.Microsecond, Kind: BadLink, Hosts: []string{"a"}, Rest: []string{"b"}, Link: LinkConfig{Latency: time.Second, Loss: 0.25}},
	}
	assert.Equal(t, `sim.Schedule{
	{At: 2458 * time.Millisecond, For: 1 * time.Second, Kind: sim.Crash, Hosts: []string{"a"}},
	{Nemesis: 1, At: 7, For: 3 * time.Microsecond, Kind: sim.BadLink, Hosts: []string{"a"}, Rest: []string{"b"}, Link: sim.LinkConfig{Latency: 1 * time.Second, Loss: 0.25}},
}`, s.GoString())
	assert.Equal(t, "2.458s for 1s: host a crashes", s[0].String())
	assert.Equal(t, "7ns for 3µs: the link from a to b is bad: Latency: 1 * time.Second, Loss: 0.25", s[1].String())
}
