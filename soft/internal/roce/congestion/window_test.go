package congestion

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const (
	base = 30 * time.Microsecond
	high = 2 * time.Millisecond // far above the target

	never = time.Duration(1<<63 - 1)
)

func open(packets, most int) *Window {
	w := &Window{}
	w.Start(packets, most)
	return w
}

// An open window goes by losses alone, as far as they are few.
func TestOpenWindow(t *testing.T) {
	w := open(64, 256)
	now := time.Second
	w.RoundTrip(base, now)
	w.RoundTrip(high, now)
	assert.Equal(t, 64, w.Packets(now), "a long round trip changes nothing")
	w.RoundTrip(base, now)
	w.Acknowledged(32, 64, now)
	assert.Equal(t, 72, w.Packets(now))
	w.Acknowledged(1, 64, now)
	assert.Equal(t, 73, w.Packets(now))
	for range 100 {
		w.Acknowledged(64, 64, now)
	}
	assert.Equal(t, 256, w.Packets(now))
	w.Lost(now)
	assert.Equal(t, 128, w.Packets(now))
	w.Lost(now)
	assert.Equal(t, 128, w.Packets(now), "once in a round trip")
	for range 20 {
		now += 10 * high
		w.Lost(now)
	}
	assert.Equal(t, leastOpen, w.Packets(now))
	assert.False(t, w.Congested(now))
	assert.Zero(t, w.Interval(now))
}

// A loss shows congestion if the round trip is long, or if there are many in a row.
func TestLossesOfCongestion(t *testing.T) {
	now := time.Second
	w := open(64, 256)
	w.RoundTrip(base, now)
	w.RoundTrip(3*base, now)
	w.Lost(now)
	assert.True(t, w.Congested(now))
	assert.False(t, w.Congested(now+congestedTime))

	w = open(64, 256)
	w.RoundTrip(base, now)
	for i := range congestionLosses {
		assert.False(t, w.Congested(now), "%d losses", i)
		now += 2 * base
		w.Lost(now)
	}
	assert.True(t, w.Congested(now))

	w = open(64, 256)
	w.Lost(now)
	assert.True(t, w.Congested(now), "nothing has come through yet")
}

// Time-outs that a busy host may have caused do not change the window.
func TestTimeOuts(t *testing.T) {
	now := time.Second
	w := open(64, 256)
	w.RoundTrip(base, now)
	w.RoundTrip(high, now)
	for range 20 {
		now += 10 * high
		w.TimedOut(now)
	}
	assert.Equal(t, leastOpen, w.Packets(now))
	assert.False(t, w.Congested(now))
	now += 10 * high
	require.True(t, w.Marked(now))
	now += 10 * high
	before := w.packets
	w.TimedOut(now)
	assert.Less(t, w.packets, before)
}

// The window of a congested path follows the round trip.
func TestWindowOfACongestedPath(t *testing.T) {
	now := time.Second
	w := open(64, 256)
	w.RoundTrip(base, now)
	require.True(t, w.Marked(now))
	assert.Equal(t, 32, w.Packets(now), "the first mark halves it")
	require.False(t, w.Marked(now), "once in a round trip")
	w.probe.earliest = never

	now += time.Millisecond
	w.RoundTrip(base, now)
	before := w.packets
	w.Acknowledged(32, 32, now)
	assert.InDelta(t, before+growth, w.packets, 0.01)
	w.Acknowledged(1, 2, now)
	assert.InDelta(t, before+growth, w.packets, 0.01, "it is not this window that bounds them")
	for range onTargetTrips {
		w.RoundTrip(base, now)
	}
	before = w.packets
	w.Acknowledged(32, 32, now)
	assert.InDelta(t, before+8, w.packets, 0.01, "five round trips without congestion")

	now += time.Millisecond
	before = w.packets
	w.RoundTrip(high, now)
	assert.Equal(t, before, w.packets, "once may be chance")
	w.RoundTrip(high, now)
	assert.InDelta(t, before/2, w.packets, 0.01, "far above the target")
	before = w.packets
	w.Acknowledged(32, 32, now)
	assert.Equal(t, before, w.packets, "it does not grow meanwhile")
	now += 10 * high
	w.RoundTrip(w.target()+10*time.Microsecond, now)
	assert.Less(t, w.packets, before)
	assert.Greater(t, w.packets, 0.9*before, "just above the target")
}

// The window of a congested path that has never seen the empty path looks for it now and then.
func TestRoundTripProbes(t *testing.T) {
	now := time.Second
	w := open(64, 256)
	queue := func() time.Duration { return base + time.Duration(w.Packets(now))*10*time.Microsecond }
	w.RoundTrip(queue(), now)
	w.Marked(now)
	begin := w.base
	for range 1000 {
		now += time.Millisecond
		w.Acknowledged(w.Packets(now), w.Packets(now), now)
		w.RoundTrip(queue(), now)
	}
	assert.Less(t, w.base, begin/2)
	assert.Greater(t, w.Packets(now), 8)
}

// The smaller a window, the longer the round trip that it bears.
func TestTargetsOfWindows(t *testing.T) {
	last := time.Hour
	for _, packets := range []int{1, 4, 16, 64} {
		w := open(packets, 256)
		w.RoundTrip(base, time.Second)
		assert.Less(t, w.target(), last)
		assert.Greater(t, w.target(), base+targetQueue)
		last = w.target()
	}
}

// Rare marks cut less than frequent ones.
func TestRareMarks(t *testing.T) {
	cut := func(every time.Duration) float64 {
		w := open(256, 256)
		now := time.Second
		w.RoundTrip(base, now)
		for range 200 {
			now += every
			w.packets = 256
			w.Marked(now)
		}
		return w.packets / 256
	}
	assert.Less(t, cut(base), 0.6)
	assert.Greater(t, cut(100*base), 0.9)
}

// A queue that never empties keeps a path congested, but not for ever.
func TestStandingQueue(t *testing.T) {
	w := open(64, 256)
	now := time.Second
	w.RoundTrip(base, now)
	w.Marked(now)
	start := now
	for w.Congested(now) {
		now += time.Millisecond
		w.RoundTrip(base+targetQueue, now)
		require.Less(t, now-start, longCongestedTime+2*congestedTime)
	}
	assert.Greater(t, now-start, longCongestedTime)

	w = open(64, 256)
	w.RoundTrip(base, now)
	w.Marked(now)
	for start = now; w.Congested(now); now += time.Millisecond {
		w.RoundTrip(base+time.Microsecond, now)
	}
	assert.InDelta(t, congestedTime.Seconds(), (now - start).Seconds(), 0.1)
}

// A window that yields without effect is in competitive mode for a while, in which few losses
// count, and for longer each time.
func TestYieldingWithoutEffect(t *testing.T) {
	w := open(64, 256)
	now := time.Second
	pass := func(trips int, roundTrip time.Duration) {
		for range trips {
			now += roundTrip
			w.RoundTrip(roundTrip, now)
			w.Acknowledged(w.Packets(now), w.Packets(now), now)
		}
	}
	competitive := func() {
		w.Lost(now)
		require.True(t, w.Congested(now))
		trips := 0
		for ; w.Congested(now); trips++ {
			pass(1, high)
			require.Less(t, trips, 100)
		}
		assert.Greater(t, trips, (ineffectiveTrends-1)*trend)
		assert.GreaterOrEqual(t, w.Packets(now), leastOpen)
	}
	w.RoundTrip(base, now)
	w.RoundTrip(high, now)
	for _, time := range []time.Duration{leastCompetitive, 2 * leastCompetitive, 4 * leastCompetitive} {
		competitive()
		for end := now + time - 20*high; now < end; {
			pass(5, high)
			w.Lost(now)
			require.False(t, w.Congested(now))
		}
		pass(20, high)
	}

	competitive()
	for n := range congestionLosses {
		assert.False(t, w.Congested(now), "%d losses in a row", n)
		pass(2, high)
		w.Lost(now)
	}
	assert.True(t, w.Congested(now))
	assert.Zero(t, w.competitiveFor)

	for range 20 * trend {
		if pass(1, high); w.ineffective == ineffectiveTrends-1 {
			w.Lost(now)
		}
		require.True(t, w.Congested(now), "its own packets are lost too")
	}
	pass(1, high)
	competitive()
	w.Marked(now)
	require.True(t, w.Congested(now), "a mark says that it is the network")
	for range 20 {
		pass(1, high)
		w.Lost(now)
	}
	assert.Less(t, w.packets, 2.0, "and losses count again")
	pass(2*trend, base)
	assert.Zero(t, w.competitiveFor, "yielding has had its effect")
}

// Whatever the signals are, something may leave, at intervals that are bounded, and a window
// recovers from them.
func TestWindowBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(8, 4096).Draw(t, "most")
		w := open(rapid.IntRange(1, most).Draw(t, "packets"), most)
		now := time.Second
		for range rapid.IntRange(0, 200).Draw(t, "signals") {
			now += time.Duration(rapid.IntRange(0, 10_000_000).Draw(t, "passed"))
			switch rapid.IntRange(0, 4).Draw(t, "signal") {
			case 0:
				w.RoundTrip(time.Duration(rapid.IntRange(-1, 20_000_000).Draw(t, "round trip")), now)
			case 1:
				n := rapid.IntRange(0, most).Draw(t, "acknowledged")
				w.Acknowledged(n, n, now)
			case 2:
				w.Lost(now)
			case 3:
				w.TimedOut(now)
			default:
				w.Marked(now)
			}
			require.GreaterOrEqual(t, w.Packets(now), 1)
			require.LessOrEqual(t, w.Packets(now), most)
			require.LessOrEqual(t, w.Interval(now), max(maxInterval, w.roundTrip()))
			require.True(t, w.Interval(now) == 0 || w.Interval(now) >= minInterval)
		}
		w.RoundTrip(base, now)
		for n := 0; w.Packets(now) < min(64, most); n++ {
			require.Less(t, n, 2000, "it has not recovered: %v packets", w.packets)
			now += max(base, w.Interval(now))
			w.RoundTrip(base, now)
			w.Acknowledged(w.Packets(now), w.Packets(now), now)
		}
	})
}
