package fabric

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The queue gives out events in the order in which a slice has them that is kept sorted.
func TestQueue(t *testing.T) {
	t.Parallel()
	type event struct {
		at    time.Duration
		order uint64
	}
	compare := func(a, b event) int {
		if a.at != b.at {
			return int(a.at - b.at)
		}
		return int(a.order) - int(b.order)
	}
	rapid.Check(t, func(t *rapid.T) {
		var q Queue[event]
		var sorted []event
		pop := func() {
			require.Equal(t, sorted[0].at, q.Next())
			require.Equal(t, sorted[0], q.Pop())
			sorted = sorted[1:]
		}
		times, orders := rapid.IntRange(0, 20), rapid.IntRange(0, 5)
		for range rapid.IntRange(0, 300).Draw(t, "steps") {
			if len(sorted) > 0 && rapid.IntRange(0, 2).Draw(t, "pop") == 0 {
				pop()
			} else {
				e := event{time.Duration(times.Draw(t, "at")), uint64(orders.Draw(t, "order"))}
				q.Push(e.at, e.order, e)
				sorted = append(sorted, e)
				slices.SortFunc(sorted, compare)
			}
			require.Equal(t, len(sorted), q.Len())
		}
		for len(sorted) > 0 {
			pop()
		}
		require.Zero(t, q.Len())
	})
}
