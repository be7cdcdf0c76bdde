package quota

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// fill takes as many places for a source as it may.
func fill(p *Places[string], source string, limit int) (n int) {
	for ; p.Fits(source, limit); n++ {
		p.Take(source)
	}
	return n
}

// A source that takes all it may leaves as many places free, and those that come later get places.
func TestOthersFindPlaces(t *testing.T) {
	var p Places[string]
	require.Equal(t, 50, fill(&p, "a", 100))
	require.Equal(t, 25, fill(&p, "b", 100))
	require.Equal(t, 13, fill(&p, "c", 100))
	require.True(t, p.Fits("d", 100))
	require.Equal(t, 88, p.Taken())
	require.Zero(t, fill(&p, "a", 100))
	for range 50 {
		p.Release("a")
	}
	require.Zero(t, p.Held("a"))
	require.Equal(t, 19, fill(&p, "b", 100), "it may hold a share of what became free")
}

// The only source gets the only place, and half of an odd number is rounded up.
func TestFewPlaces(t *testing.T) {
	for limit, most := range []int{0, 1, 1, 2, 2, 3} {
		var p Places[string]
		require.Equal(t, most, fill(&p, "a", limit), "of %d", limit)
	}
}

// No entry is kept for a source without a place.
func TestForgetsSources(t *testing.T) {
	var p Places[int]
	for i := range 1000 {
		p.Take(i)
		p.Release(i)
	}
	require.Empty(t, p.held)
	require.Zero(t, p.Taken())
}
