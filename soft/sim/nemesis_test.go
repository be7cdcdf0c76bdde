package sim

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// untilEnd is a program that does nothing.
func untilEnd(ctx context.Context, _ verbs.Device) error {
	<-ctx.Done()
	return nil
}

// randomChaos draws a configuration, and hosts of which it acts on some.
func randomChaos(s *Sim) Chaos {
	r := s.Rand()
	hosts := s.Hosts("h", 2+r.IntN(5))
	for _, h := range hosts {
		h.Run(untilEnd)
	}
	return Chaos{
		Hosts: hosts[:1+r.IntN(len(hosts))], MaxDown: r.IntN(4), Until: 20 * time.Second,
		Interval: time.Duration(r.IntN(500)) * time.Millisecond, Longest: time.Duration(r.IntN(2000)) * time.Millisecond,
		Crashes: r.IntN(3), Pauses: r.IntN(3), Partitions: r.IntN(3), OneWay: r.IntN(3), BadLinks: r.IntN(3),
	}
}

// needed is the least number of the hosts whose faults explain all that is wrong now.
func needed(s *Sim, hosts []*Host) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	least := len(hosts) + 1
	for set := range 1 << len(hosts) {
		down, n := map[*node]bool{}, 0
		for _, h := range s.hosts {
			i := slices.Index(hosts, h)
			down[h.node] = i < 0 || set>>i&1 == 1
			if i >= 0 && down[h.node] {
				n++
			}
		}
		explained := true
		for _, h := range hosts {
			explained = explained && (down[h.node] || !h.down && len(h.pauses) == 0)
		}
		for pair := range s.topology.cuts {
			explained = explained && (down[pair[0]] || down[pair[1]])
		}
		if explained {
			least = min(least, n)
		}
	}
	return least
}

// A Nemesis keeps its limits, and leaves everything as it was.
func TestNemesisLimits(t *testing.T) {
	Check(t, 30, func(s *Sim) {
		c := randomChaos(s)
		n := s.Nemesis(c)
		good := LinkConfig{Latency: time.Millisecond}
		s.SetDefaultLink(good)
		downSince, most := map[*Host]time.Duration{}, 0
		s.RunUntil(func() bool {
			most = max(most, needed(s, n.c.Hosts))
			for _, h := range s.hosts {
				if !h.stands() {
					downSince[h] = s.Now()
				}
				require.LessOrEqual(s, s.Now()-downSince[h], n.c.Longest, "%v", h)
			}
			return n.Done()
		}, time.Minute)
		assert.LessOrEqual(s, most, n.c.MaxDown)
		assert.InDelta(s, c.Until, s.Now(), float64(checkInterval))
		s.Run(0)
		for _, h := range s.hosts {
			assert.False(s, h.stands(), "%v", h)
			assert.True(s, h.busy(), "%v", h)
		}
		assert.Empty(s, s.topology.cuts)
		for _, l := range s.topology.links {
			assert.Equal(s, good, l.Config(), "%v", l)
		}
		counts := n.Counts()
		s.Run(time.Minute)
		assert.Equal(s, counts, n.Counts())
		if c.Crashes+c.Pauses+c.Partitions+c.OneWay+c.BadLinks > 0 {
			for _, k := range [][2]int{{c.Crashes, counts[Crash]}, {c.Pauses, counts[Pause]}, {c.Partitions, counts[Partition]},
				{c.OneWay, counts[OneWayOut] + counts[OneWayIn]}, {c.BadLinks, counts[BadLink]}} {
				assert.True(s, k[0] > 0 || k[1] == 0, "%+v: %+v", c, counts)
			}
		}
	})
}

// A seed draws the same faults each time, and other seeds draw others.
func TestNemesisRepeats(t *testing.T) {
	draws := func(seed uint64) (what string) {
		synctest.Test(t, func(t *testing.T) {
			s := New(t, seed)
			n := s.Nemesis(randomChaos(s))
			s.Run(30 * time.Second)
			what = fmt.Sprint(n.Counts(), s.Digest())
		})
		return what
	}
	seen := map[string]bool{}
	for seed := range uint64(20) {
		what := draws(seed)
		require.Equal(t, what, draws(seed))
		seen[what] = true
	}
	require.Len(t, seen, 20)
}

// Without weights all kinds of faults occur, but not in each seed, to a minority of the hosts, until Stop.
func TestNemesisDefaults(t *testing.T) {
	var mu sync.Mutex
	seeds, with, mostDown := 0, map[FaultKind]int{}, 0
	Check(t, 20, func(s *Sim) {
		for _, h := range s.Hosts("h", 5) {
			h.Run(untilEnd)
		}
		n := s.Nemesis(Chaos{})
		most := 0
		s.At(5*time.Minute, func() {})
		s.RunUntil(func() bool {
			most = max(most, needed(s, s.hosts))
			return s.Now() >= 5*time.Minute
		}, time.Hour)
		assert.False(s, n.Done())
		assert.LessOrEqual(s, most, 2)
		c := n.Counts()
		n.Stop()
		assert.True(s, n.Done())
		assert.Zero(s, needed(s, s.hosts))
		s.Run(time.Minute)
		assert.Equal(s, c, n.Counts())
		mu.Lock()
		defer mu.Unlock()
		seeds, mostDown = seeds+1, max(mostDown, most)
		for k := range c {
			with[k]++
		}
	})
	assert.Equal(t, 2, mostDown)
	for k := Crash; k <= BadLink; k++ {
		assert.Positive(t, with[k], "%v", k)
		assert.Less(t, with[k], seeds, "%v", k)
	}
}

// What the test has cut, changed, crashed and paused itself stays so.
func TestNemesisLeavesTheRest(t *testing.T) {
	Check(t, 5, func(s *Sim) {
		hosts := s.Hosts("h", 4)
		for _, h := range hosts {
			h.Run(untilEnd)
		}
		s.Run(0)
		s.Cut(hosts[0], hosts[1])
		hosts[2].Crash()
		hosts[3].Pause()
		n := s.Nemesis(Chaos{Interval: 100 * time.Millisecond, MaxDown: 4})
		s.Run(time.Minute)
		changed := LinkConfig{Latency: time.Second}
		s.Link(hosts[0], hosts[2]).Set(changed)
		n.Stop()
		s.Run(0)
		assert.Equal(s, map[[2]*node]causes{{hosts[0].node, hosts[1].node}: {nil}}, s.topology.cuts)
		assert.True(s, hosts[2].Crashed())
		assert.True(s, hosts[3].stands())
		assert.Equal(s, changed, s.Link(hosts[0], hosts[2]).Config())
	})
}

// What the test does while a fault does the same outlives the fault.
func TestNemesisLeavesWhatTheTestRepeats(t *testing.T) {
	for name, c := range map[string]struct {
		chaos    Chaos
		do, undo func(s *Sim, a, b *Host)
		is       func(s *Sim, a, b *Host) bool
	}{
		"crash": {
			Chaos{Crashes: 1},
			func(_ *Sim, a, _ *Host) { a.Crash() },
			func(_ *Sim, a, _ *Host) { a.Restart() },
			func(_ *Sim, a, _ *Host) bool { return a.Crashed() },
		},
		"pause": {
			Chaos{Pauses: 1},
			func(_ *Sim, a, _ *Host) { a.Pause() },
			func(_ *Sim, a, _ *Host) { a.Resume() },
			func(_ *Sim, a, _ *Host) bool { return a.stands() },
		},
		"cut": {
			Chaos{Partitions: 1},
			func(s *Sim, a, b *Host) { s.Cut(a, b) },
			func(s *Sim, _, _ *Host) { s.Heal() },
			func(s *Sim, a, b *Host) bool { return len(s.topology.cuts[[2]*node{a.node, b.node}]) > 0 },
		},
	} {
		for _, undone := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", undone first: ", undone), func(t *testing.T) {
				Check(t, 3, func(s *Sim) {
					a, b := s.Host("a"), s.Host("b")
					a.Run(untilEnd)
					b.Run(untilEnd)
					chaos := c.chaos
					chaos.Hosts = []*Host{a}
					n := s.Nemesis(chaos)
					s.RunUntil(func() bool { return c.is(s, a, b) }, time.Minute)
					if undone {
						c.undo(s, a, b)
						s.Run(0)
						require.False(s, c.is(s, a, b))
					}
					c.do(s, a, b)
					n.Stop()
					s.Run(time.Second)
					require.True(s, c.is(s, a, b))
					c.undo(s, a, b)
					s.Run(0)
					require.False(s, c.is(s, a, b))
				})
			})
		}
	}
}
