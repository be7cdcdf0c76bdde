package local

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBudget(t *testing.T) {
	var b Budget
	for range maxPeerImports {
		require.True(t, b.reserve(1, 1<<30))
	}
	require.False(t, b.reserve(1, 1), "one process has no more")
	require.True(t, b.reserve(2, 1))
	b.release(1, 1<<30)
	require.True(t, b.reserve(1, 1<<30))

	require.True(t, b.reserve(3, maxPeerImportBytes-1))
	require.False(t, b.reserve(3, 2))
	require.True(t, b.reserve(3, 1))
	require.True(t, b.reserve(4, maxPeerImportBytes))
	require.True(t, b.reserve(5, maxPeerImportBytes))
	require.False(t, b.reserve(6, maxPeerImportBytes), "all processes together have no more")

	for range maxPeerImports {
		b.release(1, 1<<30)
	}
	b.release(2, 1)
	b.release(3, maxPeerImportBytes-1)
	b.release(3, 1)
	b.release(4, maxPeerImportBytes)
	b.release(5, maxPeerImportBytes)
	require.Zero(t, b.usage)
	require.Empty(t, b.peers)

	for n := range maxImports {
		require.True(t, b.reserve(n/maxPeerImports, 1))
	}
	require.False(t, b.reserve(maxImports, 1))
}
