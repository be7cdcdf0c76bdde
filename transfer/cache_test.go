package transfer

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// What is registered at first use is found again, and stays within its limits under churn.
func TestCache(t *testing.T) {
	ctx := testContext(t)
	const entries, limit = 8, 64 << 10
	near, far := open(t, 2, func(c *Config) { c.CacheBytes, c.CacheEntries = limit, entries }), open(t, 1)
	theirs := register(t, far, "blocks", 1<<20)
	remote := dial(t, near, far, "blocks")

	mine := make([]byte, 10_000)
	fill(mine, 1)
	for range 3 {
		var b Batch
		b.Write(remote, 0, mine)
		b.Write(remote, 20_000, mine[5000:])
		require.NoError(t, submit(t, near, &b).Wait(ctx))
	}
	require.Equal(t, mine, theirs.Bytes()[:len(mine)])
	require.Equal(t, mine[5000:], theirs.Bytes()[20_000:25_000])
	c := near.Counters()
	require.EqualValues(t, []uint64{5, 1, 0, 10_000}, []uint64{c.CacheHits, c.CacheMisses, c.CacheEvictions, c.CacheBytes})

	rnd := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		block := make([]byte, 1+rnd.IntN(limit/2))
		var b Batch
		b.Read(remote, 0, block)
		b.Read(remote, len(block)/2, block[len(block)/2:])
		require.NoError(t, submit(t, near, &b).Wait(ctx))
		require.True(t, bytes.Equal(block, theirs.Bytes()[:len(block)]))
		near.mu.Lock()
		bytes := 0
		for _, s := range near.cached {
			bytes += len(s.mem)
		}
		require.LessOrEqual(t, len(near.cached), entries)
		require.Equal(t, near.idle.Len(), len(near.cached))
		near.mu.Unlock()
		require.LessOrEqual(t, bytes, limit)
		require.EqualValues(t, bytes, near.Counters().CacheBytes)
	}
	require.Greater(t, near.Counters().CacheEvictions, uint64(250))
}

// What items use is not evicted: more than the limit is registered, and goes when it is used no more.
func TestCacheInUse(t *testing.T) {
	ctx := testContext(t)
	near, far := open(t, 1, func(c *Config) { c.CacheBytes, c.CacheEntries, c.Depth = 1, 1, 1 }), open(t, 1)
	theirs := register(t, far, "blocks", 1<<20)
	fill(theirs.Bytes(), 1)
	remote := dial(t, near, far, "blocks")
	var blocks [][]byte
	var handles []*Handle
	for range 10 {
		var b Batch
		for range 10 {
			blocks = append(blocks, make([]byte, 100_000))
			b.Read(remote, len(blocks)*1000, blocks[len(blocks)-1])
		}
		handles = append(handles, submit(t, near, &b))
	}
	for _, h := range handles {
		require.NoError(t, h.Wait(ctx))
	}
	for i, block := range blocks {
		require.True(t, bytes.Equal(block, theirs.Bytes()[(i+1)*1000:][:len(block)]))
	}
	var b Batch
	b.Read(remote, 0, make([]byte, 10))
	require.NoError(t, submit(t, near, &b).Wait(ctx))
	require.EqualValues(t, 10, near.Counters().CacheBytes)
	require.Len(t, near.cached, 1)

	// A batch that is refused holds nothing.
	b.Read(remote, 0, make([]byte, 100))
	b.Read(remote, -1, make([]byte, 100))
	_, err := near.Submit(&b)
	require.ErrorIs(t, err, ErrRange)
	require.Equal(t, 2, near.idle.Len())
}
