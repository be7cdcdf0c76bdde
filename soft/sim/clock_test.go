package sim

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// leases is a test of two hosts that take turns with a lease of ten seconds from a third. Each stops a
// margin before its end.
func leases(c Chaos, margin time.Duration, clock func(h *Host) time.Duration) func(s *Sim) {
	const lease = 10 * time.Second
	return func(s *Sim) {
		server := s.Host("server")
		var until time.Duration // by the server's clock
		holders := 0
		for _, h := range s.Hosts("h", 2) {
			h.Run(func(ctx context.Context, _ verbs.Device) error {
				for ctx.Err() == nil {
					if clock(server) < until {
						h.Sleep(100 * time.Millisecond)
						continue
					}
					from := clock(h)
					until = clock(server) + lease
					holders++
					for left := lease - margin; left > 0 && ctx.Err() == nil; left = from + lease - margin - clock(h) {
						h.Sleep(min(left, time.Second))
					}
					holders--
				}
				return nil
			})
		}
		n := s.Nemesis(c)
		s.RunUntil(func() bool {
			if holders > 1 {
				s.Fatal("two hosts have the lease")
			}
			return n.Done()
		}, time.Hour)
	}
}

func wallClock(h *Host) time.Duration { return h.Now().Sub(h.s.begin) }

// failures returns the seeds up to 30 with which a test fails.
func failures(test func(s *Sim)) (seeds []uint64) {
	for seed := uint64(1); seed <= 30; seed++ {
		if Simulate(seed, test) != nil {
			seeds = append(seeds, seed)
		}
	}
	return seeds
}

// A margin that is less than the drift of two clocks is a fault that only drifting clocks show, and so is a
// time-out by a clock that jumps.
func TestClockFaults(t *testing.T) {
	chaos := Chaos{Until: 2 * time.Minute, Interval: 10 * time.Second, Crashes: 1, Partitions: 1, BadLinks: 1, BadClocks: 2}
	drift, steps := chaos, chaos
	drift.ClockDrift, steps.ClockOffset = 0.02, time.Minute
	const enough, little = time.Second, 100 * time.Millisecond
	assert.Empty(t, failures(leases(drift, enough, (*Host).Monotonic)))
	assert.Empty(t, failures(leases(steps, enough, (*Host).Monotonic)))
	assert.Empty(t, failures(leases(chaos, little, (*Host).Monotonic)))
	assert.NotEmpty(t, failures(leases(steps, enough, wallClock)))

	planted := leases(drift, little, (*Host).Monotonic)
	seeds := failures(planted)
	require.NotEmpty(t, seeds)
	var failed *Sim
	require.Error(t, Simulate(seeds[0], func(s *Sim) { failed = s; planted(s) }))
	k := &shrinker{seed: seeds[0], test: planted, most: 1000, tried: make(map[string]bool), failure: "two hosts have the lease"}
	small := k.shrink(failed.schedule)
	require.NotEmpty(t, small)
	require.LessOrEqual(t, len(small), 2)
	for _, f := range small {
		assert.Equal(t, BadClock, f.Kind)
		assert.NotZero(t, f.Drift)
		assert.Contains(t, f.String(), "the clock of host ")
	}
}

// Clocks keep the limits, and are right in the end. Timers do not jump.
func TestClockLimits(t *testing.T) {
	Check(t, 20, func(s *Sim) {
		h := s.Host("h")
		n := s.Nemesis(Chaos{ClockOffset: time.Hour, ClockDrift: 0.1, BadClocks: 1, Until: time.Minute})
		wrong, last, ticks := false, time.Duration(0), 0
		var tick func()
		tick = func() {
			ticks++
			now := h.Monotonic()
			require.InDelta(s, float64(now-last), float64(time.Second), float64(250*time.Millisecond))
			last = now
			if s.Now() < time.Minute {
				turns{h}.AfterFunc(time.Second, tick)
			}
		}
		turns{h}.AfterFunc(time.Second, tick)
		s.RunUntil(func() bool {
			offset := wallClock(h) - h.Monotonic()
			require.LessOrEqual(s, math.Abs(float64(wallClock(h)-s.Now())), float64(time.Hour+s.Now()/10))
			require.LessOrEqual(s, math.Abs(float64(h.Monotonic()-s.Now())), float64(s.Now()/10+1))
			require.InDelta(s, 1, h.clock.rate, 0.1)
			require.Equal(s, time.Second, turns{h}.Until(h.Now().Add(time.Second))) // deadlines are by the clock that jumps
			wrong = wrong || offset != 0 && h.clock.rate != 1
			return n.Done()
		}, time.Hour)
		assert.True(s, wrong)
		assert.Greater(s, ticks, 50)
		assert.InDelta(s, float64(s.Now()), float64(wallClock(h)), float64(6*time.Second+1)) // the step is undone
		assert.Equal(s, 1.0, h.clock.rate)
		assert.Positive(s, n.Counts()[BadClock])
	})
}

// Without limits no clock is wrong.
func TestClocksAreRight(t *testing.T) {
	require.NoError(t, Simulate(1, func(s *Sim) {
		s.Host("a")
		n := s.Nemesis(Chaos{})
		s.Run(time.Minute)
		assert.Zero(t, n.Counts()[BadClock])
		assert.False(t, strings.Contains(s.schedule.GoString(), "BadClock"))
	}))
}
