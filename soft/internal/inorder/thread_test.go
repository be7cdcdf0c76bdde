//go:build gc && go1.26 && !go1.27 && linux && (amd64 || arm64) && !purego && !race

package inorder

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// choices is what the runtime chooses: cases of select, the order of a map and of goroutines, numbers.
func choices() (list []uint64) {
	c := make(chan uint64, 20)
	for i := range 10 {
		d, e := make(chan uint64, 1), make(chan uint64, 1)
		d <- uint64(2 * i)
		e <- uint64(2*i + 1)
		select {
		case n := <-d:
			list = append(list, n)
		case n := <-e:
			list = append(list, n)
		}
		go func() { c <- uint64(i) }()
	}
	for n := range map[uint64]bool{0: true, 1: true, 2: true, 3: true, 4: true, 5: true, 6: true} {
		list = append(list, n)
	}
	for range 10 {
		list = append(list, <-c)
	}
	return append(list, rand.Uint64())
}

func TestSeed(t *testing.T) {
	require.True(t, Known())
	processors, rate := runtime.GOMAXPROCS(2), runtime.MemProfileRate
	defer runtime.GOMAXPROCS(processors)
	seen := map[uint64][]uint64{}
	o := Begin()
	differ := 0
	for range 20 {
		o.Collect()
		for seed := range uint64(20) {
			o.Seed(seed, 1, seed)
			list := choices()
			if seen[seed] == nil {
				seen[seed] = list
			}
			if !slices.Equal(seen[seed], list) {
				differ++
			}
		}
	}
	// Where it waits for another thread at a lock of the runtime's, that takes random numbers.
	require.Less(t, differ, 40, "of 400")
	o.End()
	require.False(t, slices.Equal(seen[0], seen[1]))
	require.Equal(t, 2, runtime.GOMAXPROCS(0))
	require.Equal(t, rate, runtime.MemProfileRate)
	require.NotEqual(t, rand.Uint64(), seen[19][len(seen[19])-1])
}

// Events of one instant have different seeds, and those of another run the same.
func TestSeedsOfAnInstant(t *testing.T) {
	o := Begin()
	defer o.End()
	var runs [2][]uint64
	for i := range runs {
		o.Collect()
		for _, at := range []uint64{0, 0, 0, 5, 5, 6} {
			for place := range uint64(2) {
				o.Seed(1, at, place)
				runs[i] = append(runs[i], rand.Uint64())
			}
		}
	}
	require.Equal(t, runs[0], runs[1])
	slices.Sort(runs[0])
	require.Len(t, slices.Compact(runs[0]), 12)
}

// The scheduler counts in the field that Seed sets, and Seed sets it to the same place of its turn.
func TestTicks(t *testing.T) {
	o := Begin()
	defer o.End()
	var ticks []uint32
	for range 100 { // another goroutine may come between
		o.Seed(1, 0, 0)
		ticks = nil
		for range 3 {
			procPin()
			ticks = append(ticks, fields().processorOf(current()).ticks%globalEvery)
			procUnpin()
			runtime.Gosched()
		}
		if slices.Equal(ticks, []uint32{1, 2, 3}) {
			return
		}
	}
	require.Fail(t, "the ticks are never 1, 2, 3", ticks)
}

// A run is disturbed when the process has waited, until the next one.
func TestDisturbed(t *testing.T) {
	o := Begin()
	defer o.End()
	o.Collect()
	o.Seed(1, 0, 0)
	require.False(t, o.Disturbed())
	for end := nanotime() + 2*longest; nanotime() < end; {
		continue
	}
	o.Seed(1, 1, 0)
	require.True(t, o.Disturbed())
	o.Collect()
	require.False(t, o.Disturbed())
}
