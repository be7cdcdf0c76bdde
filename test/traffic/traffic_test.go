package traffic

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSizes(t *testing.T) {
	const most = 128 << 10
	rng := rand.New(rand.NewPCG(1, 2))
	least, greatest := most, 0
	for range 100_000 {
		n := Size(rng, most)
		least, greatest = min(least, n), max(greatest, n)
	}
	assert.Equal(t, 1, least)
	assert.Greater(t, greatest, most*9/10)
	assert.LessOrEqual(t, greatest, most)
	chosen := map[int]int{}
	for range 10_000 {
		chosen[choose(rng, true)]++
	}
	for op, weight := range weights {
		assert.Equal(t, weight > 0, chosen[op] > 0, OpNames[op])
	}
	for range 1000 {
		op := choose(rng, false)
		assert.NotContains(t, []int{opCompareSwap, opFetchAdd}, op)
	}
}
