package fabrictest

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/soft/internal/fabric"
)

// send sends a packet of n bytes, all of the same value.
func send(w *Network[string], from, to string, n int, value byte, arrive func(b []byte)) {
	b := w.Buffer(n)
	for i := range b {
		b[i] = value
	}
	w.Send(from, to, b, arrive)
}

// Every packet arrives as it was sent, if nothing is configured to change it. What happens
// depends on the seed alone.
func TestNetwork(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		probability := func(name string) float64 { return rapid.SampledFrom([]float64{0, 0.1, 0.5, 1}).Draw(t, name) }
		c := fabric.LinkConfig{
			Latency: time.Duration(rapid.IntRange(0, 10_000).Draw(t, "latency")), Jitter: time.Duration(rapid.IntRange(0, 10_000).Draw(t, "jitter")),
			Rate: rapid.SampledFrom([]int64{0, 1e9}).Draw(t, "rate"), Queue: rapid.SampledFrom([]int{0, 20_000}).Draw(t, "queue"),
			MTU:  rapid.SampledFrom([]int{0, 1500}).Draw(t, "MTU"),
			Loss: probability("loss"), Duplicate: probability("duplication"), Reorder: probability("reordering"), Corrupt: probability("corruption"),
		}
		seed := rapid.Uint64().Draw(t, "seed")
		sizes := rapid.SliceOfN(rapid.IntRange(1, 5000), 1, 100).Draw(t, "sizes")
		pause := time.Duration(rapid.IntRange(0, 10_000).Draw(t, "pause"))
		run := func() (log []string, counts fabric.Counts) {
			w := NewNetwork[string](seed, time.Second, c)
			for i, size := range sizes {
				from, to := fmt.Sprint(i%3), fmt.Sprint((i+1+i%2)%3)
				w.After(pause*time.Duration(i), func() {
					send(w, from, to, size, byte(i), func(b []byte) {
						intact := bytes.Equal(bytes.Repeat([]byte{byte(i)}, size), b)
						require.True(t, intact || c.Corrupt > 0)
						log = append(log, fmt.Sprint(i, from, to, w.Now, intact))
						w.Release(b)
					})
				})
			}
			require.True(t, w.Run(time.Hour))
			return log, w.Counts()
		}
		log, counts := run()
		again, countsAgain := run()
		require.Equal(t, log, again)
		require.Equal(t, counts, countsAgain)
		require.Equal(t, uint64(len(sizes)), counts.Sent)
		require.Len(t, log, int(counts.Sent+counts.Duplicated-counts.Lost-counts.Overflowed-counts.TooLong))
		if c.Corrupt == 1 {
			require.Equal(t, uint64(len(log)), counts.Corrupted)
		}
	})
}

// A change of the configuration is one for every link.
func TestNetworkConfig(t *testing.T) {
	t.Parallel()
	w := NewNetwork[string](1, 0, fabric.LinkConfig{Loss: 1})
	received := map[string]int{}
	for range 2 {
		for _, to := range []string{"a", "b"} {
			send(w, "c", to, 100, 1, func([]byte) { received[to]++ })
		}
		w.Config.Loss = 0
	}
	require.True(t, w.Run(time.Second))
	assert.Equal(t, map[string]int{"a": 1, "b": 1}, received)
	assert.Equal(t, uint64(2), w.Link("c", "a").Sent)
	assert.Zero(t, w.Link("a", "c").Sent)
	assert.True(t, w.Chance(1))
	assert.False(t, w.Chance(0))
}

// Buffers are used again, and their content is overwritten before.
func TestNetworkBuffers(t *testing.T) {
	t.Parallel()
	w := NewNetwork[string](1, 0, fabric.LinkConfig{})
	b := w.Buffer(100)
	w.Release(b)
	assert.Equal(t, bytes.Repeat([]byte{0xdb}, 100), b)
	again := w.Buffer(bufferSize)
	assert.Same(t, &b[0], &again[0])
	assert.NotSame(t, &b[0], &w.Buffer(100)[0])
	w.Release(again)
	long := w.Buffer(bufferSize + 1)
	assert.Len(t, long, bufferSize+1)
	w.Release(long)
	assert.Equal(t, bytes.Repeat([]byte{0xdb}, bufferSize+1), long)
	w.Config.Loss = 1
	send(w, "a", "b", bufferSize, 1, nil)
	lost := w.Buffer(1)
	assert.Equal(t, byte(0xdb), lost[0], "a lost packet's buffer is used again")
}
