package bufinv

import (
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/mmap"
)

func TestSourceAndTarget(t *testing.T) {
	m, bufs := local(t, 100, mmap.LocalReadWrite), inventory(t, 2)
	copy(m.Bytes(), "0123456789abcdef")

	s := bufs.Source(m, 4, 6)
	require.NoError(t, s.Err())
	assert.Same(t, m, s.Map())
	assert.False(t, s.Remote())
	assert.Equal(t, m.Addr()+4, s.Addr())
	assert.Equal(t, 6, s.Len())
	assert.Equal(t, m.Addr()+4, s.DataAddr())
	assert.Equal(t, 6, s.DataLen())
	assert.Equal(t, m.Addr()+10, s.TailAddr())
	assert.Zero(t, s.Room())
	assert.Equal(t, "456789", string(s.Bytes()))
	assert.Equal(t, 6, cap(s.Bytes()), "appending to it does not reach beyond")

	d := bufs.Target(m, 90, 10)
	require.NoError(t, d.Err())
	assert.Equal(t, m.Addr()+90, d.Addr())
	assert.Equal(t, 10, d.Len())
	assert.Zero(t, d.DataLen())
	assert.Equal(t, 10, d.Room())
	assert.Empty(t, d.Bytes())
	assert.NotNil(t, d.Bytes())
	assert.Len(t, d.Memory(), 10)

	assert.Equal(t, 2, bufs.Total())
	assert.Zero(t, bufs.Available())
	require.ErrorIs(t, bufs.Close(), ErrInUse)
	require.ErrorIs(t, m.Close(), mmap.ErrInUse)
	require.NoError(t, s.Free())
	require.NoError(t, d.Free())
	assert.Equal(t, 2, bufs.Available())
}

func TestRemoteBuf(t *testing.T) {
	m, bufs := remote(t, 0x10000, 4096), inventory(t, 1)
	b := bufs.Target(m, 16, 32)
	require.NoError(t, b.Err())
	assert.True(t, b.Remote())
	assert.Equal(t, uint64(0x10010), b.TailAddr())
	assert.Nil(t, b.Bytes())
	assert.Nil(t, b.Memory())
	assert.Empty(t, b.AppendBytes(nil))
	require.ErrorIs(t, b.Append([]byte("x")), mmap.ErrRemote)
	_, err := forFriends{b}.AppendRoomSGL(nil, device.pd, -1)
	require.ErrorIs(t, err, mmap.ErrRemote)
	require.NoError(t, b.Free())
}

func TestErrorsSitInTheBuf(t *testing.T) {
	m, bufs := local(t, 100, mmap.LocalReadOnly), inventory(t, 1)
	closed, err := mmap.Alloc(device, 1, mmap.LocalReadOnly)
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	for name, c := range map[string]struct {
		buf  *Buf
		want error
	}{
		"no data":            {bufs.Source(m, 0, 0), ErrRange},
		"no room":            {bufs.Target(m, 0, 0), ErrRange},
		"negative length":    {bufs.Source(m, 0, -1), ErrRange},
		"negative offset":    {bufs.Source(m, -1, 1), ErrRange},
		"past the end":       {bufs.Target(m, 99, 2), ErrRange},
		"far past the end":   {bufs.Target(m, math.MaxInt, math.MaxInt), ErrRange},
		"no map":             {bufs.Source(nil, 0, 1), ErrInvalid},
		"closed map":         {bufs.Source(closed, 0, 1), mmap.ErrClosed},
		"duplicate of nil":   {bufs.Dup(nil), ErrInvalid},
		"list with an error": {List(bufs.Source(m, 0, 10), bufs.Source(m, 0, 0)), ErrRange},
	} {
		t.Run(name, func(t *testing.T) {
			b := c.buf
			require.NotNil(t, b)
			require.ErrorIs(t, b.Err(), c.want)
			require.ErrorIs(t, b.SetData(0, 0), c.want)
			require.ErrorIs(t, b.ResetData(), c.want)
			require.ErrorIs(t, b.Ref(), c.want)
			require.ErrorIs(t, b.Chain(b), c.want)
			require.ErrorIs(t, b.Unchain(), c.want)
			require.ErrorIs(t, forFriends{b}.AppendData(0), c.want)
			require.ErrorIs(t, b.Append(nil), c.want)
			_, err := forFriends{b}.AppendDataSGL(nil, device.pd)
			require.ErrorIs(t, err, c.want)
			_, err = forFriends{b}.AppendRoomSGL(nil, device.pd, -1)
			require.ErrorIs(t, err, c.want)
			assertEmpty(t, b)
			if b.err != nil {
				require.NoError(t, b.Free(), "there is nothing to free")
			}
		})
	}
	assert.Equal(t, 1, bufs.Available(), "failures take nothing")
}

func assertEmpty(t *testing.T, b *Buf) {
	t.Helper()
	assert.Nil(t, b.Map())
	assert.False(t, b.Remote())
	assert.Zero(t, b.Addr()+b.DataAddr()+b.TailAddr())
	assert.Zero(t, b.Len()+b.DataLen()+b.Room()+b.ListLen()+b.ListDataLen()+b.ListRoom())
	assert.Nil(t, b.Bytes())
	assert.Nil(t, b.Memory())
	assert.Nil(t, b.AppendBytes(nil))
	assert.Nil(t, b.Next())
	assert.Same(t, b, b.First())
	assert.Same(t, b, b.Last())
}

func TestNilBufIsTheEmptyList(t *testing.T) {
	var b *Buf
	require.NoError(t, b.Err())
	require.NoError(t, b.Free())
	require.NoError(t, forFriends{b}.AppendData(0))
	require.NoError(t, b.Append(nil))
	require.ErrorIs(t, forFriends{b}.AppendData(1), ErrRange)
	sgl, err := forFriends{b}.AppendDataSGL(nil, device.pd)
	require.NoError(t, err)
	assert.Empty(t, sgl)
	sgl, err = forFriends{b}.AppendRoomSGL(nil, device.pd, -1)
	require.NoError(t, err)
	assert.Empty(t, sgl)
	assertEmpty(t, b)
	require.ErrorIs(t, b.SetData(0, 0), ErrInvalid)
	require.ErrorIs(t, b.Ref(), ErrInvalid)
	require.ErrorIs(t, b.Chain(b), ErrInvalid)
	require.ErrorIs(t, b.Unchain(), ErrInvalid)
}

func TestExhaustedAndExpanded(t *testing.T) {
	m, bufs := local(t, 8, mmap.LocalReadOnly), inventory(t, 1)
	a := bufs.Source(m, 0, 1)
	require.NoError(t, a.Err())
	require.ErrorIs(t, bufs.Source(m, 0, 1).Err(), ErrExhausted)
	require.ErrorIs(t, bufs.Dup(a).Err(), ErrExhausted)
	require.ErrorIs(t, bufs.Expand(0), ErrRange)
	require.ErrorIs(t, bufs.Expand(math.MaxInt), ErrRange)
	require.NoError(t, bufs.Expand(2))
	assert.Equal(t, 3, bufs.Total())
	assert.Equal(t, 2, bufs.Available())
	b := bufs.Source(m, 0, 1)
	require.NoError(t, b.Err())
	require.NoError(t, a.Free())
	require.NoError(t, b.Free())
	assert.Equal(t, 3, bufs.Available())
}

func TestNewAndClose(t *testing.T) {
	for _, n := range []int{math.MinInt, 0, maxBufs + 1, math.MaxInt} {
		_, err := New(n)
		require.ErrorIs(t, err, ErrRange)
	}
	m := local(t, 8, mmap.LocalReadOnly)
	bufs, err := New(1)
	require.NoError(t, err)
	require.NoError(t, bufs.Close())
	require.NoError(t, bufs.Close(), "closing again")
	require.ErrorIs(t, bufs.Expand(1), ErrClosed)
	require.ErrorIs(t, bufs.Source(m, 0, 1).Err(), ErrClosed)
}

// The zero value grows, and then uses again what it has.
func TestZeroInventoryGrows(t *testing.T) {
	m := local(t, 8, mmap.LocalReadWrite)
	var bufs Inventory
	assert.Zero(t, bufs.Total()+bufs.Available())
	var out []*Buf
	seen := map[*Buf]bool{}
	for range 5 * initialBufs {
		b := bufs.Target(m, 0, 8)
		require.NoError(t, b.Err())
		require.False(t, seen[b], "a Buf was handed out twice")
		seen[b] = true
		out = append(out, b)
	}
	assert.Equal(t, 8*initialBufs, bufs.Total(), "it doubles")
	assert.Equal(t, 3*initialBufs, bufs.Available())
	require.ErrorIs(t, bufs.Close(), ErrInUse)
	for _, b := range out {
		require.NoError(t, b.Free())
	}
	require.ErrorIs(t, out[0].Free(), ErrFreed)
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		for i := range out {
			out[i] = bufs.Target(m, 0, 8)
		}
		for _, b := range out {
			_ = b.Free()
		}
	}))
	assert.Equal(t, bufs.Total(), bufs.Available())
	require.NoError(t, bufs.Close())
	require.ErrorIs(t, bufs.Target(m, 0, 8).Err(), ErrClosed)
	require.ErrorIs(t, bufs.Expand(1), ErrClosed)
}

// Expand makes Bufs in advance, so that not even the first use allocates.
func TestZeroInventoryExpands(t *testing.T) {
	m := local(t, 8, mmap.LocalReadWrite)
	var bufs Inventory
	require.NoError(t, bufs.Expand(3))
	require.ErrorIs(t, bufs.Expand(maxBufs-2), ErrRange)
	assert.Equal(t, 3, bufs.Total())
	list := List(bufs.Target(m, 0, 8), bufs.Target(m, 0, 8), bufs.Target(m, 0, 8), bufs.Target(m, 0, 8))
	require.NoError(t, list.Err())
	assert.Equal(t, 3+initialBufs, bufs.Total())
	require.NoError(t, list.Free())
	require.NoError(t, bufs.Close())
}

// A growing inventory stops at the largest size.
func TestZeroInventoryIsBounded(t *testing.T) {
	m := local(t, 8, mmap.LocalReadWrite)
	var bufs Inventory
	bufs.s.total = maxBufs - 1 // as if all but one were out
	b := bufs.Target(m, 0, 8)
	require.NoError(t, b.Err())
	require.ErrorIs(t, bufs.Target(m, 0, 8).Err(), ErrExhausted)
	require.NoError(t, b.Free())
	require.NoError(t, bufs.Target(m, 0, 8).Free())
}

func TestConcurrentGrowth(t *testing.T) {
	m := local(t, 64, mmap.LocalReadWrite)
	var bufs Inventory
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20 {
				var out []*Buf
				for range 100 {
					b := bufs.Target(m, 0, 8)
					assert.NoError(t, b.Err())
					out = append(out, b)
				}
				for _, b := range out {
					assert.NoError(t, b.Free())
				}
			}
		})
	}
	wg.Wait()
	assert.Equal(t, bufs.Total(), bufs.Available())
	require.NoError(t, bufs.Close())
}

func TestDoubleFree(t *testing.T) {
	m, bufs := local(t, 8, mmap.LocalReadWrite), inventory(t, 4)
	a := bufs.Target(m, 0, 8)
	require.NoError(t, a.Free())
	require.ErrorIs(t, a.Free(), ErrFreed)
	require.ErrorIs(t, a.Err(), ErrFreed)
	require.ErrorIs(t, a.Ref(), ErrFreed)
	require.ErrorIs(t, a.SetData(0, 1), ErrFreed)
	require.ErrorIs(t, bufs.Dup(a).Err(), ErrFreed)
	assertEmpty(t, a)
	assert.Equal(t, 4, bufs.Available())

	// The one freed last is the last to go out again.
	var out []*Buf
	for range 3 {
		b := bufs.Target(m, 0, 8)
		require.NoError(t, b.Err())
		assert.NotSame(t, a, b)
		out = append(out, b)
	}
	require.ErrorIs(t, a.Free(), ErrFreed)
	for _, b := range out {
		require.NoError(t, b.Free())
	}
}

func TestReferences(t *testing.T) {
	m, bufs := local(t, 8, mmap.LocalReadOnly), inventory(t, 1)
	b := bufs.Source(m, 0, 8)
	require.NoError(t, b.Ref())
	require.NoError(t, b.Free())
	require.NoError(t, b.Err())
	assert.Zero(t, bufs.Available())
	require.NoError(t, b.Free())
	assert.Equal(t, 1, bufs.Available())
}

func TestSetData(t *testing.T) {
	m, bufs := local(t, 100, mmap.LocalReadWrite), inventory(t, 1)
	b := bufs.Target(m, 10, 20)
	for _, c := range [][2]int{{-1, 1}, {0, -1}, {0, 21}, {21, 0}, {15, 6}, {1, math.MaxInt}, {math.MaxInt, 1}} {
		require.ErrorIs(t, b.SetData(c[0], c[1]), ErrRange)
		assert.Zero(t, b.DataLen())
	}
	require.NoError(t, b.SetData(20, 0))
	assert.Zero(t, b.Room())
	require.NoError(t, b.SetData(5, 10))
	assert.Equal(t, m.Addr()+15, b.DataAddr())
	assert.Equal(t, m.Addr()+25, b.TailAddr())
	assert.Equal(t, 5, b.Room())
	require.NoError(t, b.ResetData())
	assert.Equal(t, b.Addr(), b.DataAddr())
	assert.Equal(t, 20, b.Room())
	require.NoError(t, b.Free())
}

func TestDup(t *testing.T) {
	m, bufs := local(t, 100, mmap.LocalReadWrite), inventory(t, 3)
	b := List(bufs.Target(m, 10, 20), bufs.Source(m, 0, 1))
	require.NoError(t, b.SetData(2, 3))
	d := bufs.Dup(b)
	require.NoError(t, d.Err())
	assert.Equal(t, 1, d.ListLen())
	assert.Equal(t, b.Addr(), d.Addr())
	assert.Equal(t, b.Len(), d.Len())
	assert.Equal(t, b.DataAddr(), d.DataAddr())
	assert.Equal(t, b.DataLen(), d.DataLen())
	require.NoError(t, d.ResetData())
	assert.Equal(t, 3, b.DataLen(), "each has its own data")
	require.NoError(t, b.Free())
	require.NoError(t, d.Err())
	require.NoError(t, d.Free())
}

func TestConcurrentUse(t *testing.T) {
	m, bufs := local(t, 64, mmap.LocalReadWrite), inventory(t, 6)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 2000 {
				l := List(bufs.Source(m, 0, 8), bufs.Target(m, 8, 8))
				if l.Err() != nil {
					assert.ErrorIs(t, l.Err(), ErrExhausted)
					continue
				}
				assert.Equal(t, 2, l.ListLen())
				last := l.Last()
				assert.NoError(t, last.Ref())
				var inner sync.WaitGroup
				inner.Go(func() { assert.NoError(t, l.Free()) })
				assert.NoError(t, last.Free())
				inner.Wait()
			}
		})
	}
	wg.Wait()
	assert.Equal(t, 6, bufs.Available())
}
