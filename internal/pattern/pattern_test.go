package pattern_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/internal/pattern"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func made(size int, key uint64, at int) []byte {
	b := make([]byte, size)
	pattern.Fill(b, key, at)
	return b
}

// Both ends make the same data, in whatever pieces; another key, another position, one wrong
// bit anywhere, and memory that nothing was written to are found.
func TestPattern(t *testing.T) {
	for _, size := range []int{1, 7, 8, 9, 4095, 4096, 100_003} {
		whole := made(size, 5, 0)
		require.NoError(t, pattern.Check(whole, 5, 0))
		for _, piece := range []int{1, 3, 8, 1000, size} {
			at := 0
			for got := range slices.Chunk(bytes.Clone(whole), piece) {
				require.NoError(t, pattern.Check(got, 5, at))
				assert.Equal(t, got, made(len(got), 5, at))
				at += len(got)
			}
		}
		for _, i := range []int{0, size / 2, size - 1} {
			bad := bytes.Clone(whole)
			bad[i] ^= 1
			assert.Equal(t, i, pattern.First(bad, 5, 0))
			require.ErrorContains(t, pattern.Check(bad, 5, 0), "the data is wrong: 1 of ")
			clear(bad[i:])
			assert.Equal(t, i, pattern.First(bad, 5, 0))
		}
	}
	whole := made(64, 5, 0)
	assert.NotEqual(t, whole, made(64, 6, 0), "another key")
	assert.NotEqual(t, whole, made(64, 5, 1), "another position")
	assert.NotEqual(t, whole[:32], whole[32:])
	assert.NotEqual(t, pattern.Key(1, "c1", 2, 0, true), pattern.Key(1, "c1", 2, 0, false))
	assert.NotEqual(t, pattern.Key(1, "c1", 2, 0, true), pattern.Key(2, "c1", 2, 0, true))
}

// A byte that differs is found, wherever it is.
func TestFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key, at := rapid.Uint64().Draw(t, "key"), rapid.IntRange(0, 20).Draw(t, "position")
		b := made(rapid.IntRange(1, 70).Draw(t, "size"), key, at)
		require.Equal(t, -1, pattern.First(b, key, at))
		i := rapid.IntRange(0, len(b)-1).Draw(t, "index")
		b[i] ^= byte(rapid.IntRange(1, 255).Draw(t, "damage"))
		require.Equal(t, i, pattern.First(b, key, at))
	})
}

func TestWrongBytes(t *testing.T) {
	b := made(10_000, 3, 50)
	b[9_000], b[9_010] = 0, 0
	require.NoError(t, pattern.Check(b[:5_000], 3, 50))
	require.ErrorContains(t, pattern.Check(b[5_000:], 3, 5_050), "2 of 5000 bytes, from byte 9050 to 9060; the first is 0x00, not ")
}
