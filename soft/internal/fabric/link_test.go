package fabric

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func newTestLink(seed uint64, c LinkConfig) *Link { return NewLink(c, rand.New(rand.NewPCG(seed, 0))) }

// handed is a packet that a link is given.
type handed struct {
	pause   time.Duration // since the packet before
	size    int
	capable bool
}

func drawPackets(t *rapid.T) []handed {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) handed {
		return handed{
			time.Duration(rapid.SampledFrom([]int{0, 1, 100, 10_000}).Draw(t, "pause")),
			rapid.IntRange(1, 5000).Draw(t, "size"), rapid.Bool().Draw(t, "capable"),
		}
	}), 1, 100).Draw(t, "packets")
}

func drawConfig(t *rapid.T) LinkConfig {
	duration := func(name string) time.Duration {
		return time.Duration(rapid.IntRange(0, 10_000).Draw(t, name))
	}
	probability := func(name string) float64 { return rapid.SampledFrom([]float64{0, 0.1, 0.5, 1}).Draw(t, name) }
	return LinkConfig{
		Latency: duration("latency"), Jitter: duration("jitter"), ReorderDelay: duration("delay of reordered packets"),
		Rate:  rapid.SampledFrom([]int64{0, 1e6, 1e9, 7e9}).Draw(t, "rate"),
		Queue: rapid.SampledFrom([]int{0, 5000, 20_000}).Draw(t, "queue"),
		Mark:  rapid.SampledFrom([]int{0, 1000, 10_000}).Draw(t, "mark"),
		MTU:   rapid.SampledFrom([]int{0, 1500}).Draw(t, "MTU"),
		Loss:  probability("loss"), Duplicate: probability("duplication"), Reorder: probability("reordering"),
		Corrupt: probability("corruption"), RandomMark: probability("marks"),
	}
}

// carryAll gives packets to a link, and returns the arrivals of each.
func carryAll(l *Link, packets []handed) (arrivals [][]Arrival) {
	now := time.Duration(0)
	for _, p := range packets {
		now += p.pause
		a, n := l.Carry(now, p.size, p.capable)
		arrivals = append(arrivals, slices.Clone(a[:n]))
	}
	return arrivals
}

// The same seed gives the same arrivals.
func TestLinkIsDeterministic(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c, packets, seed := drawConfig(t), drawPackets(t), rapid.Uint64().Draw(t, "seed")
		a, b := newTestLink(seed, c), newTestLink(seed, c)
		require.Equal(t, carryAll(a, packets), carryAll(b, packets))
		require.Equal(t, a.Counts, b.Counts)
	})
}

// Without reordering packets arrive one after the other, in the order in which they were sent,
// even if the configuration changes. None arrives before its time.
func TestLinkKeepsOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := newTestLink(rapid.Uint64().Draw(t, "seed"), LinkConfig{})
		now, last := time.Duration(0), time.Duration(0)
		for range rapid.IntRange(1, 3).Draw(t, "configurations") {
			l.Config = drawConfig(t)
			l.Config.Reorder = 0
			for _, p := range drawPackets(t) {
				now += p.pause
				arrivals, n := l.Carry(now, p.size, p.capable)
				for _, a := range arrivals[:n] {
					require.Greater(t, a.At, last)
					require.GreaterOrEqual(t, a.At, now+l.Config.Latency)
					last = a.At
				}
			}
		}
	})
}

// The counts agree with what arrives, and what is not configured does not happen.
func TestLinkCounts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c, packets := drawConfig(t), drawPackets(t)
		l := newTestLink(rapid.Uint64().Draw(t, "seed"), c)
		var want Counts
		delivered := uint64(0)
		for i, arrivals := range carryAll(l, packets) {
			want.Sent++
			want.Bytes += uint64(packets[i].size)
			if len(arrivals) > 0 {
				delivered++
				want.Duplicated += uint64(len(arrivals) - 1)
				if arrivals[0].Marked {
					want.Marked++
					require.True(t, packets[i].capable)
				}
			}
			if c.MTU > 0 && packets[i].size > c.MTU {
				want.TooLong++
				require.Empty(t, arrivals)
			}
			for _, a := range arrivals {
				require.Equal(t, arrivals[0].Marked, a.Marked)
				if a.Corrupt {
					want.Corrupted++
				}
			}
		}
		got := l.Counts
		require.Equal(t, got.Sent, got.Lost+got.Overflowed+got.TooLong+delivered)
		for _, fault := range []struct {
			configured bool
			count      uint64
		}{
			{c.Loss > 0, got.Lost}, {c.Rate > 0 && c.Queue > 0, got.Overflowed}, {c.MTU > 0, got.TooLong},
			{c.Duplicate > 0, got.Duplicated}, {c.Reorder > 0, got.Reordered}, {c.Corrupt > 0, got.Corrupted},
			{c.RandomMark > 0 || c.Rate > 0 && c.Mark > 0, got.Marked}, {c.Rate > 0, got.Deepest},
		} {
			require.True(t, fault.configured || fault.count == 0)
		}
		want.Lost, want.Overflowed, want.Reordered, want.Deepest = got.Lost, got.Overflowed, got.Reordered, got.Deepest
		require.Equal(t, want, got)
		twice := got
		twice.Add(&got)
		require.Equal(t, Counts{
			2 * got.Sent, 2 * got.Bytes, 2 * got.Lost, 2 * got.Overflowed, 2 * got.TooLong, 2 * got.Marked,
			2 * got.Duplicated, 2 * got.Reordered, 2 * got.Corrupted, got.Deepest,
		}, twice)
	})
}

// Packets leave one after the other at the configured rate. The queue drops and marks as many
// as its length says.
func TestLinkQueue(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := LinkConfig{
			Rate: 1e9, Latency: time.Duration(rapid.IntRange(0, 10_000).Draw(t, "latency")), // a byte in a nanosecond
			Queue: rapid.IntRange(0, 20_000).Draw(t, "queue"), Mark: rapid.IntRange(0, 20_000).Draw(t, "mark"),
		}
		l := newTestLink(0, c)
		now, waiting := time.Duration(0), 0
		for _, p := range drawPackets(t) {
			now += p.pause
			waiting = max(0, waiting-int(p.pause))
			arrivals, n := l.Carry(now, p.size, p.capable)
			if c.Queue > 0 && waiting+p.size > c.Queue {
				require.Zero(t, n)
				continue
			}
			marked := p.capable && c.Mark > 0 && waiting >= c.Mark
			waiting += p.size
			require.Equal(t, 1, n)
			require.Equal(t, Arrival{At: now + time.Duration(waiting) + c.Latency, Marked: marked}, arrivals[0])
			require.GreaterOrEqual(t, l.Deepest, uint64(waiting))
		}
	})
}

// A link that has always something to send moves as many bytes as its rate says.
func TestLinkRate(t *testing.T) {
	t.Parallel()
	for _, rate := range []int64{1000, 125_000_000, 12_500_000_000} {
		l := newTestLink(0, LinkConfig{Rate: rate})
		const packets, size = 1000, 1078
		var last time.Duration
		for range packets {
			arrivals, _ := l.Carry(0, size, false)
			last = arrivals[0].At
		}
		want := packets * size * float64(time.Second) / float64(rate)
		assert.InDelta(t, want, float64(last), packets, "%d bytes a second", rate)
	}
}

// Faults are as frequent as configured.
func TestLinkFaults(t *testing.T) {
	t.Parallel()
	for _, p := range []float64{0, 0.01, 0.3, 1} {
		const packets = 10_000
		for name, fault := range map[string]struct {
			config LinkConfig
			count  func(c *Counts) uint64
		}{
			"loss":        {LinkConfig{Loss: p}, func(c *Counts) uint64 { return c.Lost }},
			"duplication": {LinkConfig{Duplicate: p}, func(c *Counts) uint64 { return c.Duplicated }},
			"reordering":  {LinkConfig{Reorder: p}, func(c *Counts) uint64 { return c.Reordered }},
			"corruption":  {LinkConfig{Corrupt: p}, func(c *Counts) uint64 { return c.Corrupted }},
			"marks":       {LinkConfig{RandomMark: p}, func(c *Counts) uint64 { return c.Marked }},
		} {
			l := newTestLink(1, fault.config)
			for range packets {
				l.Carry(0, 100, true)
			}
			slack := packets * 0.03
			if p == 0 || p == 1 {
				slack = 0
			}
			assert.InDelta(t, p*packets, float64(fault.count(&l.Counts)), slack, "%s, %v", name, p)
		}
	}
}

// Reordered packets arrive after some that were sent later, but are not delayed for ever.
func TestLinkReorders(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		config LinkConfig
		most   time.Duration
	}{
		{LinkConfig{Latency: time.Microsecond, ReorderDelay: time.Millisecond}, time.Millisecond},
		{LinkConfig{Latency: 5 * time.Microsecond}, 50 * time.Microsecond},
		{LinkConfig{}, 10 * time.Microsecond},
	} {
		c.config.Reorder = 0.2
		l := newTestLink(1, c.config)
		overtaken, longest := 0, time.Duration(0)
		var last time.Duration
		for i := range 1000 {
			now := time.Duration(i) * time.Microsecond
			arrivals, _ := l.Carry(now, 100, false)
			if arrivals[0].At < last {
				overtaken++
			}
			last = max(last, arrivals[0].At)
			longest = max(longest, arrivals[0].At-now-c.config.Latency)
		}
		assert.Greater(t, overtaken, 100)
		assert.LessOrEqual(t, longest, c.most)
		assert.Greater(t, longest, c.most*9/10)
	}
}

// A corrupted packet differs in one or three bits.
func TestLinkCorrupts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := newTestLink(rapid.Uint64().Draw(t, "seed"), LinkConfig{})
		before := rapid.SliceOfN(rapid.Byte(), 1, 20).Draw(t, "packet")
		after := slices.Clone(before)
		l.Corrupt(after)
		differ := 0
		for i := range before {
			differ += bits.OnesCount8(before[i] ^ after[i])
		}
		require.Contains(t, []int{1, 3}, differ)
		l.Corrupt(nil)
	})
}
