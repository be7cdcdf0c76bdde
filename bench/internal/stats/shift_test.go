package stats

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Critical values of the Mann-Whitney test from the tables of statistics (two sides): the
// greatest U that is significant, which is one below ours.
func TestCritical(t *testing.T) {
	for _, c := range []struct {
		n, m  int
		alpha float64
		want  int
	}{
		{4, 4, 0.05, 0}, {5, 5, 0.05, 2}, {5, 8, 0.05, 6}, {8, 8, 0.05, 13}, {10, 10, 0.05, 23}, {20, 20, 0.05, 127}, {7, 12, 0.05, 18},
		{5, 5, 0.01, 0}, {10, 10, 0.01, 16}, {3, 3, 0.05, -1}, {4, 4, 0.01, -1},
	} {
		assert.Equal(t, c.want+1, critical(c.n, c.m, c.alpha), "%+v", c)
		assert.Equal(t, c.want+1, critical(c.m, c.n, c.alpha), "%+v", c)
	}
	assert.Equal(t, 4, Enough(0.05))
	assert.Equal(t, 5, Enough(0.01))
	assert.Equal(t, 6, Enough(0.05/23)) // -a
	// The approximation goes on where the exact values end.
	exact, near := critical(50, 50, 0.05), critical(51, 51, 0.05)
	assert.InDelta(t, float64(exact)/2500, float64(near)/2601, 0.005)
}

// The interval holds the true ratio as often as it says, and more where it says more.
func TestCoverage(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	sample := func(n int, factor float64) (list []float64) {
		for range n {
			list = append(list, factor*math.Exp(0.1*random.NormFloat64()))
		}
		return list
	}
	for _, alpha := range []float64{0.05, 0.2} {
		const trials = 2000
		missed := 0
		for range trials {
			if s := ShiftOf(sample(7, 3), sample(9, 3.6), alpha); s.Low > 1.2 || s.High < 1.2 {
				missed++
			}
		}
		assert.LessOrEqual(t, float64(missed)/trials, alpha+0.02)
		assert.Greater(t, missed, 0, "an interval that never misses is too wide")
	}
}
