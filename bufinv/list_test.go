package bufinv

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestChain(t *testing.T) {
	m, bufs := local(t, 100, mmap.LocalReadWrite), inventory(t, 5)
	a, b, c, d := bufs.Source(m, 0, 1), bufs.Target(m, 10, 2), bufs.Source(m, 20, 3), bufs.Target(m, 30, 4)
	require.NoError(t, a.Chain(b))
	require.NoError(t, c.Chain(d))
	require.NoError(t, b.Chain(c), "from any element, a whole list")
	assert.Equal(t, []*Buf{a, b, c, d}, elementsOf(a))
	for _, e := range []*Buf{a, b, c, d} {
		assert.Same(t, a, e.First())
		assert.Same(t, d, e.Last())
	}
	assert.Equal(t, 4, a.ListLen())
	assert.Equal(t, 2, c.ListLen())
	assert.Equal(t, 4, a.ListDataLen())
	assert.Equal(t, 6, a.ListRoom())
	assert.Equal(t, 3, b.ListDataLen())

	require.ErrorIs(t, d.Chain(a), ErrChained, "a ring")
	require.ErrorIs(t, a.Chain(a), ErrChained)
	other := bufs.Source(m, 50, 1)
	require.ErrorIs(t, other.Chain(other), ErrChained)
	require.ErrorIs(t, other.Chain(c), ErrChained, "from the middle of a list")
	require.ErrorIs(t, other.Chain(nil), ErrInvalid)
	assert.Equal(t, []*Buf{a, b, c, d}, elementsOf(a))

	require.ErrorIs(t, a.Unchain(), ErrInvalid)
	require.NoError(t, c.Unchain())
	assert.Equal(t, []*Buf{a, b}, elementsOf(a))
	assert.Equal(t, []*Buf{c, d}, elementsOf(c))
	require.NoError(t, a.Free())
	assert.Equal(t, 2, bufs.Available(), "a and b")
	require.NoError(t, c.Err())
	require.NoError(t, c.Free())
	require.NoError(t, other.Free())
}

func elementsOf(b *Buf) []*Buf {
	var all []*Buf
	for e := b; e != nil; e = e.Next() {
		all = append(all, e)
	}
	return all
}

func TestFreeOfAList(t *testing.T) {
	m, bufs := local(t, 100, mmap.LocalReadWrite), inventory(t, 3)
	a, b, c := bufs.Source(m, 0, 1), bufs.Source(m, 0, 1), bufs.Source(m, 0, 1)
	require.Same(t, a, List(a, nil, b, c))
	require.ErrorIs(t, b.Free(), ErrChained, "its reference is the list's")
	require.NoError(t, b.Ref())
	require.NoError(t, a.Free())
	assert.Equal(t, 1, bufs.Available())
	assert.Equal(t, []*Buf{b, c}, elementsOf(b), "what somebody else refers to lives on, with what follows")
	assert.Same(t, b, c.First())
	require.NoError(t, b.Free())
	assert.Equal(t, 3, bufs.Available())
	require.ErrorIs(t, c.Free(), ErrFreed)
}

func TestListFreesAllOnError(t *testing.T) {
	m, bufs := local(t, 100, mmap.LocalReadWrite), inventory(t, 4)
	source := func() *Buf { return bufs.Source(m, 0, 1) }
	l := List(source(), source(), bufs.Source(m, 0, 0), source())
	require.ErrorIs(t, l.Err(), ErrRange)
	assert.Equal(t, 4, bufs.Available())

	a := source()
	l = List(a, source(), a, a)
	require.ErrorIs(t, l.Err(), ErrChained)
	assert.Equal(t, 4, bufs.Available())

	a, b := source(), source()
	require.NoError(t, a.Chain(b))
	l = List(source(), b)
	require.ErrorIs(t, l.Err(), ErrChained)
	assert.Equal(t, 2, bufs.Available(), "the other list is not touched")
	require.NoError(t, a.Free())

	l = List(source(), source(), source(), source(), source())
	require.ErrorIs(t, l.Err(), ErrExhausted)
	assert.Equal(t, 4, bufs.Available())

	assert.Nil(t, List())
	assert.Nil(t, List(nil, nil))
}

func TestDataSGL(t *testing.T) {
	m, bufs := local(t, 100, mmap.LocalReadOnly), inventory(t, 3)
	l := List(bufs.Source(m, 0, 10), bufs.Target(m, 20, 10), bufs.Source(m, 40, 5))
	before := verbs.SGE{Addr: 1, Length: 2, LKey: 3}
	sgl, err := forFriends{l}.AppendDataSGL([]verbs.SGE{before}, device.pd)
	require.NoError(t, err)
	assert.Equal(t, []verbs.SGE{before, {Addr: m.Addr(), Length: 10, LKey: testKey}, {Addr: m.Addr() + 40, Length: 5, LKey: testKey}}, sgl)

	sgl, err = forFriends{l}.AppendDataSGL([]verbs.SGE{before}, &fakePD{})
	require.ErrorIs(t, err, mmap.ErrNotRegistered)
	assert.Equal(t, []verbs.SGE{before}, sgl)
	require.NoError(t, l.Free())
}

func TestRoomSGL(t *testing.T) {
	m, bufs := local(t, 100, mmap.LocalReadWrite), inventory(t, 4)
	l := List(bufs.Target(m, 0, 10), bufs.Source(m, 20, 10), bufs.Target(m, 40, 5))
	require.NoError(t, l.SetData(1, 3))
	first := verbs.SGE{Addr: m.Addr() + 4, Length: 6, LKey: testKey}
	second := verbs.SGE{Addr: m.Addr() + 40, Length: 5, LKey: testKey}
	for limit, want := range map[int][]verbs.SGE{
		-1: {first, second},
		99: {first, second},
		11: {first, second},
		6:  {first},
		7:  {first, {Addr: second.Addr, Length: 1, LKey: testKey}},
		2:  {{Addr: first.Addr, Length: 2, LKey: testKey}},
		0:  nil,
	} {
		sgl, err := forFriends{l}.AppendRoomSGL(nil, device.pd, limit)
		require.NoError(t, err)
		assert.Equal(t, want, sgl, "limit %d", limit)
	}
	_, err := forFriends{l}.AppendRoomSGL(nil, &fakePD{}, -1)
	require.ErrorIs(t, err, mmap.ErrNotRegistered)

	fixed := bufs.Target(local(t, 10, mmap.LocalReadOnly), 0, 10)
	_, err = forFriends{fixed}.AppendRoomSGL(nil, device.pd, -1)
	require.ErrorIs(t, err, mmap.ErrPermission)
	require.NoError(t, fixed.SetData(0, 10))
	_, err = forFriends{fixed}.AppendRoomSGL(nil, device.pd, -1)
	require.NoError(t, err, "nothing is to be written")
	require.NoError(t, fixed.Free())
	require.NoError(t, l.Free())
}

func TestProducedAppends(t *testing.T) {
	m, bufs := local(t, 100, mmap.LocalReadWrite), inventory(t, 3)
	copy(m.Bytes()[50:], "key=")
	copy(m.Bytes()[54:], "val")
	copy(m.Bytes(), "ue+more")
	l := List(bufs.Target(m, 50, 7), bufs.Source(m, 99, 1), bufs.Target(m, 0, 10))
	require.NoError(t, l.SetData(0, 4))
	m.Bytes()[99] = '|'
	require.ErrorIs(t, forFriends{l}.AppendData(14), ErrRange)
	require.ErrorIs(t, forFriends{l}.AppendData(-1), ErrRange)
	assert.Equal(t, "key=", string(l.Bytes()))
	require.NoError(t, forFriends{l}.AppendData(5))
	assert.Equal(t, "key=val|ue", string(l.AppendBytes(nil)))
	require.NoError(t, forFriends{l}.AppendData(5))
	assert.Equal(t, "key=val|ue+more", string(l.AppendBytes(nil)))
	assert.Equal(t, 3, l.ListRoom())
	require.NoError(t, l.Free())
}

func TestAppend(t *testing.T) {
	m, bufs := local(t, 100, mmap.LocalReadWrite), inventory(t, 3)
	l := List(bufs.Target(m, 0, 4), bufs.Target(m, 50, 6))
	require.NoError(t, l.Append([]byte("12")))
	require.NoError(t, l.Append([]byte("34567")))
	require.ErrorIs(t, l.Append([]byte("four")), ErrRange)
	assert.Equal(t, "1234567", string(l.AppendBytes(nil)))
	assert.Equal(t, "1234", string(m.Bytes()[:4]))
	assert.Equal(t, "567", string(m.Bytes()[50:53]))

	require.NoError(t, l.Chain(bufs.Target(remote(t, 0x1000, 10), 0, 10)))
	require.ErrorIs(t, l.Append([]byte("x")), mmap.ErrRemote)
	assert.Equal(t, 7, l.ListDataLen())
	require.NoError(t, l.Free())
}

func TestSizesBeyondTheLimits(t *testing.T) {
	m, bufs := remote(t, 1, math.MaxInt), inventory(t, 2)
	l := List(bufs.Source(m, 0, math.MaxInt), bufs.Target(m, 0, math.MaxInt))
	require.NoError(t, l.Next().SetData(0, 1))
	assert.Equal(t, math.MaxInt, l.ListDataLen())
	require.NoError(t, l.SetData(0, 0))
	assert.Equal(t, math.MaxInt, l.ListRoom())
	require.NoError(t, l.Free())

	if tooBig := uint64(math.MaxUint32) + 1; tooBig <= math.MaxInt {
		big := bufs.Source(m, 0, int(tooBig))
		_, err := forFriends{big}.AppendDataSGL(nil, device.pd)
		require.ErrorIs(t, err, ErrRange)
		require.NoError(t, big.Free())
	}
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	m, bufs := local(t, 4096, mmap.LocalReadWrite), inventory(t, 4)
	pool, err := NewPool(m, PoolConfig{Count: 2, Size: 64})
	require.NoError(t, err)
	sgl := make([]verbs.SGE, 0, 8)
	pd := device.DefaultPD()
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		l := List(bufs.Source(m, 0, 8), bufs.Target(m, 64, 8), pool.Alloc())
		_ = l.Ref()
		sgl, _ = forFriends{l}.AppendDataSGL(sgl[:0], pd)
		sgl, _ = forFriends{l}.AppendRoomSGL(sgl, pd, 70)
		_ = forFriends{l}.AppendData(70)
		_ = l.Free()
		_ = l.Free()
		if len(sgl) != 3 {
			panic("not three entries")
		}
	}))
	assert.Equal(t, 4, bufs.Available())
	require.NoError(t, pool.Close())
}

func BenchmarkSourceFree(b *testing.B) {
	m, bufs := local(b, 4096, mmap.LocalReadOnly), inventory(b, 32)
	b.ReportAllocs()
	for b.Loop() {
		if err := bufs.Source(m, 0, 8).Free(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendDataSGL(b *testing.B) {
	m, bufs := local(b, 4096, mmap.LocalReadOnly), inventory(b, 32)
	l := bufs.Source(m, 0, 8)
	sgl := make([]verbs.SGE, 0, 4)
	pd := device.DefaultPD()
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if sgl, err = (forFriends{l}).AppendDataSGL(sgl[:0], pd); err != nil {
			b.Fatal(err)
		}
	}
	require.NoError(b, l.Free())
}
