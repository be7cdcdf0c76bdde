package transport

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestRing compares a ring with a slice.
func TestRing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 100).Draw(t, "limit")
		r := NewRing[int](limit)
		var model []int
		next := 0
		for range rapid.IntRange(0, 300).Draw(t, "steps") {
			if rapid.IntRange(0, 2).Draw(t, "what") > 0 {
				require.Equal(t, len(model) == limit, r.Full())
				if !r.Full() {
					*r.Push() = next
					model = append(model, next)
					next++
				}
			} else if len(model) > 0 {
				require.Equal(t, model[0], *r.Pop())
				model = model[1:]
			}
			require.Equal(t, len(model), r.Len())
			for i, want := range model {
				require.Equal(t, want, *r.at(r.head + uint64(i)))
			}
		}
		require.Less(t, len(r.items), 2*limit)
		r.empty()
		require.Zero(t, r.Len())
	})
}

// TestRingGrows: memory grows with the number of elements, and is kept.
func TestRingGrows(t *testing.T) {
	r := NewRing[int](1000)
	require.Empty(t, r.items)
	for n := range 1000 {
		*r.Push() = n
		require.LessOrEqual(t, len(r.items), max(ringStart, 2*(n+1)))
	}
	require.True(t, r.Full())
	require.Zero(t, testing.AllocsPerRun(100, func() {
		for range 1000 {
			r.Pop()
		}
		for range 1000 {
			r.Push()
		}
	}))
	one := NewRing[int](1)
	*one.Push() = 1
	require.Len(t, one.items, 1)
	none := NewRing[int](0)
	require.True(t, none.Full())
}
