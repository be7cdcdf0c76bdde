package spin

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// idleFor has a goroutine find nothing for d and sleep, and returns how long it looked: what
// woke it came when d was over.
func (s *Spin) idleFor(now *time.Duration, d time.Duration) (looked time.Duration) {
	s.KeepPolling(*now, true)
	for end := *now + d; ; *now += time.Microsecond {
		switch {
		case *now >= end:
			s.KeepPolling(*now, true)
			return looked
		case !s.KeepPolling(*now, false):
			*now = end
			s.Woken(*now)
			return looked
		}
		looked += time.Microsecond
	}
}

// TestIdleSpin: it looks on after more has come soon, and less and less where it does not.
func TestIdleSpin(t *testing.T) {
	s := New(0)
	s.longest = Default // on one processor too
	now := time.Hour
	assert.LessOrEqual(t, s.idleFor(&now, 10*time.Microsecond), 2*time.Microsecond, "it does not know yet")
	for range 100 {
		assert.Equal(t, 10*time.Microsecond, s.idleFor(&now, 10*time.Microsecond), "it saw what came")
	}
	total := time.Duration(0)
	for range 20 {
		total += s.idleFor(&now, time.Millisecond)
	}
	assert.LessOrEqual(t, total, 3*Default, "twenty pauses of a millisecond")
	assert.LessOrEqual(t, s.idleFor(&now, time.Millisecond), 2*time.Microsecond)
	s.idleFor(&now, 2*Default)
	assert.Equal(t, 40*time.Microsecond, s.idleFor(&now, 40*time.Microsecond), "it tries again")

	total = 0
	for range 1000 {
		total += s.idleFor(&now, 2*Default)
	}
	assert.LessOrEqual(t, total, 1000*Default/10, "more always comes too late")
	for range 2 * wastedPause {
		s.idleFor(&now, 10*time.Microsecond)
	}
	assert.Equal(t, 10*time.Microsecond, s.idleFor(&now, 10*time.Microsecond), "it comes sooner again")

	never := New(-1)
	for range 10 {
		assert.LessOrEqual(t, never.idleFor(&now, 10*time.Microsecond), 2*time.Microsecond)
	}
}

// While others want the processor, it does not poll on, however long they take it.
func TestBusyProcessor(t *testing.T) {
	for _, took := range []time.Duration{lateYield + 1, 3 * time.Millisecond} {
		s, now := New(0), time.Hour
		s.longest = Default // on one processor too
		s.idleFor(&now, 10*time.Microsecond)
		require.Equal(t, 10*time.Microsecond, s.idleFor(&now, 10*time.Microsecond))
		s.KeepPolling(now, true)
		require.True(t, s.KeepPolling(now, false))
		now += took
		require.False(t, s.KeepPolling(now, false), "the yield took long")
		s.Woken(now)
		total := time.Duration(0)
		for range wastedPause / 2 {
			total += s.idleFor(&now, 10*time.Microsecond)
		}
		require.LessOrEqual(t, total, wastedPause/2*2*time.Microsecond, took)
		for range wastedPause {
			s.idleFor(&now, 10*time.Microsecond)
		}
		require.Equal(t, 10*time.Microsecond, s.idleFor(&now, 10*time.Microsecond), "it tries again")
	}
}

// TestIdleSpinEnds: polling ends even if the clock does not advance.
func TestIdleSpinEnds(t *testing.T) {
	adaptive := New(0)
	adaptive.longest, adaptive.limit = Default, Default
	for _, s := range []Spin{adaptive, Fixed(time.Hour)} {
		looks := 0
		for s.KeepPolling(time.Hour, false) {
			looks++
		}
		assert.LessOrEqual(t, looks, maxFrozen)
	}
}

// TestFixedSpin: it looks as long as it is told, whatever has come before.
func TestFixedSpin(t *testing.T) {
	s, now := Fixed(30*time.Microsecond), time.Hour
	for range 3 {
		for range 5 {
			assert.Equal(t, 30*time.Microsecond, s.idleFor(&now, time.Millisecond))
		}
		assert.Equal(t, 10*time.Microsecond, s.idleFor(&now, 10*time.Microsecond))
	}
	for _, limit := range []time.Duration{0, -1} {
		s := Fixed(limit)
		assert.Zero(t, s.idleFor(&now, time.Millisecond))
	}
}

// It does not give the processor to other programs before yieldEvery has passed, and then now and again.
func TestYields(t *testing.T) {
	s, now, yields := Fixed(maxSpin), time.Hour, 0
	for s.KeepPolling(now, false) {
		if s.yields {
			yields++
		}
		require.LessOrEqual(t, yields, int((now-time.Hour)/yieldEvery))
		now += time.Microsecond
	}
	require.Equal(t, int(maxSpin/yieldEvery)-1, yields)

	s = Fixed(Default)
	for s.KeepPolling(now, false) {
		require.False(t, s.yields)
		now += time.Microsecond
	}
}
