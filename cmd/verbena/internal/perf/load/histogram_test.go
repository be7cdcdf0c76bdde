package load

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

// Ranges follow each other without a gap, and are narrow.
func TestRanges(t *testing.T) {
	for i := 1; i < rangeCount && last(i) > 0; i++ {
		first := last(i-1) + 1
		assert.Equal(t, i, rangeOf(first))
		assert.Equal(t, i, rangeOf(last(i)))
		assert.LessOrEqual(t, last(i)-first, first/1024)
	}
	assert.Less(t, rangeOf(math.MaxInt64), rangeCount)
}

func TestPercentile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Int64Range(0, int64(longestLatency)), 1, 100).Draw(t, "values")
		p := rapid.Float64Range(0.1, 100).Draw(t, "p")
		var h histogram
		for _, v := range values {
			h.record(v)
		}
		at, below, through := h.percentile(p), 0, 0
		for _, v := range values {
			if rangeOf(v) < rangeOf(at) {
				below++
			}
			if rangeOf(v) <= rangeOf(at) {
				through++
			}
		}
		want := p / 100 * float64(len(values))
		if float64(through) < want-0.5 || below > 0 && float64(below) >= want+0.5 {
			t.Fatalf("%v %% of %v are %d: %d are below, %d not above", p, values, at, below, through)
		}
	})
	assert.Zero(t, new(histogram).percentile(50))
}
