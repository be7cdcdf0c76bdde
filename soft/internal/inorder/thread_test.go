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
	for round := range 20 {
		o.Collect()
		for seed := range uint64(20) {
			o.Seed(seed)
			list := choices()
			if round == 0 {
				seen[seed] = list
			}
			require.Equal(t, seen[seed], list, "round %d, seed %d", round, seed)
		}
	}
	o.End()
	require.False(t, slices.Equal(seen[0], seen[1]))
	require.Equal(t, 2, runtime.GOMAXPROCS(0))
	require.Equal(t, rate, runtime.MemProfileRate)
	require.NotEqual(t, rand.Uint64(), seen[19][len(seen[19])-1])
}
