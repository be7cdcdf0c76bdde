package cm

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// owned is a timer's owner that does nothing.
type owned struct{ timer timer }

func (*owned) expire(time.Duration) {}

// TestTimers compares the heap with a sorted list.
func TestTimers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var h timers
		all := make([]owned, rapid.IntRange(1, 20).Draw(t, "timers"))
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			o := &all[rapid.IntRange(0, len(all)-1).Draw(t, "timer")]
			if rapid.Bool().Draw(t, "set") {
				h.set(&o.timer, time.Duration(rapid.IntRange(1, 50).Draw(t, "at")))
			} else {
				h.remove(&o.timer)
			}
			var times []time.Duration
			for i := range all {
				if place := all[i].timer.index; place != 0 {
					require.Same(t, &all[i].timer, h[place-1])
					times = append(times, all[i].timer.at)
				}
			}
			require.Len(t, h, len(times))
			if len(times) > 0 {
				require.Equal(t, slices.Min(times), h[0].at)
			}
		}
	})
}

// TestTimingCodes: codes and times.
func TestTimingCodes(t *testing.T) {
	t.Parallel()
	require.Equal(t, 4096*time.Nanosecond, timeoutDuration(0))
	require.Equal(t, 4294967296*time.Nanosecond, timeoutDuration(20))
	require.Equal(t, timeoutDuration(31), timeoutDuration(255))
	for code := range uint8(32) {
		require.Equal(t, code, timeoutCode(timeoutDuration(code)))
		require.Equal(t, min(code+1, 31), timeoutCode(timeoutDuration(code)+1))
		require.Equal(t, min(code+1, 31), ackTimeout(code, code))
	}
	require.Equal(t, uint8(18), ackTimeout(16, 17))
	require.Equal(t, uint8(18), ackTimeout(10, 17))
	require.Equal(t, uint8(17), ackTimeout(16, 16))
	require.Equal(t, uint8(0), timeoutCode(0))
	require.Equal(t, uint8(31), timeoutCode(time.Duration(1<<62)))
}
