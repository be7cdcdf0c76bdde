package congestion

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// send sends packets as fast as the rate allows for a while, of at most so many bytes a
// second, and returns how many bytes a second that were.
func send(r *Rate, now *time.Duration, d time.Duration, most int) float64 {
	const size = 1024
	sent, begin := 0, *now
	for *now < begin+d {
		if at := r.Wait(*now); at != 0 {
			*now = at
			continue
		}
		r.Sent(size, *now)
		sent += size
		*now += time.Duration(size) * time.Second / time.Duration(most)
	}
	return float64(sent) / (*now - begin).Seconds()
}

func TestRate(t *testing.T) {
	const most = 1_000_000_000
	var r Rate
	now := time.Second
	assert.InEpsilon(t, most, send(&r, &now, 10*time.Millisecond, most), 0.05)
	require.False(t, r.Bounded())
	require.True(t, r.Marked(now))
	require.True(t, r.Bounded())
	require.False(t, r.Marked(now+cutInterval/2), "too soon")
	assert.InEpsilon(t, most/2, send(&r, &now, 500*time.Microsecond, most), 0.2)
	for range 100 {
		now += cutInterval
		r.Marked(now)
	}
	assert.InEpsilon(t, leastRate, r.current, 0.01, "the floor")
	slow := send(&r, &now, rateInterval/2, most)
	assert.Less(t, slow, float64(most)/10)
	last := 0.0
	for range 20 {
		rate := send(&r, &now, 10*time.Millisecond, most)
		assert.Greater(t, rate, last*0.99)
		last = rate
	}
	send(&r, &now, time.Second, most)
	assert.False(t, r.Bounded(), "it has recovered")
}

// Notifications are ignored if nothing was sent recently.
func TestRateOfIdle(t *testing.T) {
	var r Rate
	assert.False(t, r.Marked(time.Second))
	now := time.Second
	send(&r, &now, time.Millisecond, 1_000_000)
	assert.True(t, r.Marked(now))
	now += time.Hour
	assert.False(t, r.Marked(now))
	assert.Zero(t, r.Wait(now))
	assert.False(t, r.Bounded())
}

// Some packets leave whatever the number of notifications.
func TestRateBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r Rate
		now := time.Second
		for range rapid.IntRange(0, 300).Draw(t, "steps") {
			now += time.Duration(rapid.IntRange(0, 2_000_000).Draw(t, "passed"))
			if rapid.Bool().Draw(t, "marked") {
				r.Marked(now)
				continue
			}
			if at := r.Wait(now); at != 0 {
				require.Greater(t, at, now)
				require.Less(t, at-now, 200*time.Millisecond)
				now = at
				require.Zero(t, r.Wait(now))
			}
			r.Sent(rapid.IntRange(0, 65536).Draw(t, "bytes"), now)
		}
		now += 10 * time.Second
		require.Zero(t, r.Wait(now))
		require.False(t, r.Bounded())
	})
}
