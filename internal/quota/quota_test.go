package quota

import (
	"fmt"
	"net/netip"
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

// It takes about as many sources as the number of places has bits to take them all.
func TestSourcesThatTakeAllPlaces(t *testing.T) {
	for limit, most := range map[int]int{1: 1, 3: 2, 1000: 10, 1024: 11, 2048: 12} {
		var p Places[string]
		sources := 0
		for ; p.Taken() < limit; sources++ {
			require.Positive(t, fill(&p, fmt.Sprint(sources), limit))
			require.Equal(t, limit>>(sources+1), limit-p.Taken(), "%d sources leave a part of %d", sources+1, limit)
		}
		require.Equal(t, most, sources, "of %d places", limit)
	}
}

func TestNetwork(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.7":                "192.0.2.7",
		"::ffff:192.0.2.7":         "192.0.2.7",
		"2001:db8:1:2:3:4:5:6":     "2001:db8:1:2::",
		"2001:db8:1:2:ffff::":      "2001:db8:1:2::",
		"2001:db8:1:3::1":          "2001:db8:1:3::",
		"fe80::3:4:5:6%interface1": "fe80::%interface1",
	} {
		require.Equal(t, netip.MustParseAddr(want), Network(netip.MustParseAddr(text)), text)
	}
	require.False(t, Network(netip.Addr{}).IsValid())
}
