package pe

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A queue that is never empty, such as that of the changes of two contexts that
// start and stop for ever, does not grow.
func TestQueueThatIsNeverEmpty(t *testing.T) {
	var q queue[int]
	next := 0
	for range 3 {
		q.push(next)
		next++
	}
	for i := range 100_000 {
		require.Equal(t, i, q.pop())
		q.push(next)
		next++
	}
	require.Equal(t, 3, q.len())
	require.LessOrEqual(t, cap(q.items), 16)
}
