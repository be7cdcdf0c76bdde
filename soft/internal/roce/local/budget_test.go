package local

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBudget(t *testing.T) {
	var b Budget
	for range maxSeenOfPeer {
		require.True(t, b.reserve(1, 1<<30))
	}
	require.False(t, b.reserve(1, 1), "one process has no more")
	require.True(t, b.reserve(2, 1))
	b.release(1, 1<<30)
	require.True(t, b.reserve(1, 1<<30))

	require.True(t, b.reserve(3, maxSeenBytesOfPeer-1))
	require.False(t, b.reserve(3, 2))
	require.True(t, b.reserve(3, 1))
	require.True(t, b.reserve(4, maxSeenBytesOfPeer))
	require.True(t, b.reserve(5, maxSeenBytesOfPeer))
	require.False(t, b.reserve(6, maxSeenBytesOfPeer), "all processes together have no more")

	for range maxSeenOfPeer {
		b.release(1, 1<<30)
	}
	b.release(2, 1)
	b.release(3, maxSeenBytesOfPeer-1)
	b.release(3, 1)
	b.release(4, maxSeenBytesOfPeer)
	b.release(5, maxSeenBytesOfPeer)
	require.Zero(t, b.usage)
	require.Empty(t, b.peers)

	for n := range maxSeen {
		require.True(t, b.reserve(n/maxSeenOfPeer, 1))
	}
	require.False(t, b.reserve(maxSeen, 1))
}
