package bufinv

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/mmap"
)

func TestPool(t *testing.T) {
	m := local(t, 4096, mmap.LocalReadWrite)
	p, err := NewPool(m, PoolConfig{Count: 3, Size: 100, Align: 64})
	require.NoError(t, err)
	err = m.Close()
	require.ErrorIs(t, err, mmap.ErrInUse)
	require.ErrorContains(t, err, ": 1 buffer pool uses it; free or close them first")
	require.NotContains(t, err.Error(), "lie")
	assert.Equal(t, 3, p.Total())

	var all []*Buf
	for i := range 3 {
		b := p.Alloc()
		require.NoError(t, b.Err())
		assert.Equal(t, m.Addr()+uint64(128*i), b.Addr())
		assert.Equal(t, 100, b.Len())
		assert.Len(t, b.Memory(), 100)
		assert.Zero(t, b.DataLen())
		require.NoError(t, b.SetData(10, 20))
		all = append(all, b)
	}
	assert.Zero(t, p.Available())
	require.ErrorIs(t, p.Alloc().Err(), ErrExhausted)
	require.ErrorIs(t, p.Close(), ErrInUse)

	bufs := inventory(t, 1)
	d := bufs.Dup(all[0])
	require.ErrorContains(t, m.Close(), ": 1 buffer pool uses it, 1 buffer uses it;")
	assert.Equal(t, all[0].DataAddr(), d.DataAddr())
	require.NoError(t, d.Free())

	require.NoError(t, List(all...).Free())
	assert.Equal(t, 3, p.Available())
	require.ErrorIs(t, all[1].Free(), ErrFreed)
	b := p.Alloc()
	assert.Zero(t, b.DataLen(), "used before, empty again")
	require.NoError(t, b.Free())

	require.NoError(t, p.Close())
	require.NoError(t, m.Friends(friend.Package{}).Hold())
	require.NoError(t, p.Close(), "closing again")
	require.NoError(t, m.Friends(friend.Package{}).Release(), "closing again lets go of nothing")
	require.ErrorIs(t, p.Alloc().Err(), ErrClosed)
}

func TestNewPoolErrors(t *testing.T) {
	m := local(t, 4096, mmap.LocalReadWrite)
	closed, err := mmap.Alloc(device, 4096, mmap.LocalReadOnly)
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	for name, c := range map[string]struct {
		m    *mmap.Map
		cfg  PoolConfig
		want error
	}{
		"no map":             {nil, PoolConfig{Count: 1, Size: 1}, ErrInvalid},
		"closed map":         {closed, PoolConfig{Count: 1, Size: 1}, mmap.ErrClosed},
		"no elements":        {m, PoolConfig{Size: 1}, ErrRange},
		"too many":           {m, PoolConfig{Count: math.MaxInt, Size: 1}, ErrRange},
		"no size":            {m, PoolConfig{Count: 1}, ErrRange},
		"negative size":      {m, PoolConfig{Count: 1, Size: -1}, ErrRange},
		"no power of two":    {m, PoolConfig{Count: 1, Size: 1, Align: 24}, ErrInvalid},
		"negative alignment": {m, PoolConfig{Count: 1, Size: 1, Align: math.MinInt}, ErrInvalid},
		"one byte too few":   {m, PoolConfig{Count: 33, Size: 125}, ErrRange},
		"gaps do not fit":    {m, PoolConfig{Count: 33, Size: 100, Align: 128}, ErrRange},
		"huge elements":      {m, PoolConfig{Count: maxBufs, Size: math.MaxInt, Align: 1 << 30}, ErrRange},
		"one huge element":   {m, PoolConfig{Count: 1, Size: math.MaxInt}, ErrRange},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := NewPool(c.m, c.cfg)
			require.ErrorIs(t, err, c.want)
			assert.Nil(t, p)
		})
	}
	p, err := NewPool(m, PoolConfig{Count: 32, Size: 100, Align: 128})
	require.NoError(t, err, "no gap is needed behind the last")
	require.NoError(t, p.Close())
}

// Elements are aligned, apart from each other and inside the memory, wherever
// that begins.
func TestPoolLayout(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		addr := rapid.Uint64Range(0, 1<<40).Draw(r, "addr")
		size := rapid.Uint64Range(1, 1<<16).Draw(r, "size")
		cfg := PoolConfig{
			Count: rapid.IntRange(1, 100).Draw(r, "count"),
			Size:  rapid.IntRange(1, 5000).Draw(r, "element"),
			Align: 1 << rapid.IntRange(0, 13).Draw(r, "align"),
		}
		m := remote(t, addr, size)
		p, err := NewPool(m, cfg)
		align := uint64(cfg.Align)
		next := (addr + align - 1) / align * align
		if err != nil {
			for range cfg.Count - 1 {
				next = (next + uint64(cfg.Size) + align - 1) / align * align
			}
			require.Greater(r, next+uint64(cfg.Size), addr+size, "it would fit")
			return
		}
		var all []*Buf
		for range cfg.Count {
			b := p.Alloc()
			require.NoError(r, b.Err())
			all = append(all, b)
			require.Zero(r, b.Addr()%align)
			require.GreaterOrEqual(r, b.Addr(), next)
			next = b.Addr() + uint64(b.Len())
		}
		require.LessOrEqual(r, next, addr+size)
		require.NoError(r, List(all...).Free())
		require.NoError(r, p.Close())
	})
}
