package bufinv

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/mmap"
)

// modelBuf is what a Buf is expected to be.
type modelBuf struct {
	real             *Buf
	refs             int // the list's included
	off, size        int
	dataOff, dataLen int
	prev, next       *modelBuf
}

// model is an inventory and all that is out of it, next to the real one.
type model struct {
	m     *mmap.Map
	bufs  *Inventory
	total int
	live  []*modelBuf
	freed []*Buf

	bounded bool
}

const modelMemory = 256

func (s *model) pick(r *rapid.T) *modelBuf {
	if len(s.live) == 0 {
		r.Skip("nothing is out")
	}
	return rapid.SampledFrom(s.live).Draw(r, "buf")
}

func (b *modelBuf) first() *modelBuf {
	for b.prev != nil {
		b = b.prev
	}
	return b
}

func (b *modelBuf) list() []*modelBuf {
	var l []*modelBuf
	for ; b != nil; b = b.next {
		l = append(l, b)
	}
	return l
}

// drop takes a reference off the model.
func (s *model) drop(b *modelBuf) {
	for b != nil {
		if b.refs--; b.refs > 0 {
			return
		}
		s.live = slices.DeleteFunc(s.live, func(l *modelBuf) bool { return l == b })
		s.freed = append(s.freed, b.real)
		if b.next != nil {
			b.next.prev = nil
		}
		b = b.next
	}
}

func (s *model) make(r *rapid.T, source bool) {
	size := rapid.IntRange(-1, modelMemory+1).Draw(r, "size")
	off := rapid.IntRange(-1, modelMemory+1).Draw(r, "off")
	b := &modelBuf{refs: 1, off: off, size: size}
	if source {
		b.real, b.dataLen = s.bufs.Source(s.m, off, size), size
	} else {
		b.real = s.bufs.Target(s.m, off, size)
	}
	s.made(r, b, size >= 1 && off >= 0 && off+size <= modelMemory)
}

func (s *model) made(r *rapid.T, b *modelBuf, inRange bool) {
	switch {
	case !inRange:
		require.ErrorIs(r, b.real.Err(), ErrRange)
	case len(s.live) == s.total && s.bounded:
		require.ErrorIs(r, b.real.Err(), ErrExhausted)
	default:
		if len(s.live) == s.total {
			s.total += max(s.total, initialBufs)
		}
		require.NoError(r, b.real.Err())
		s.live = append(s.live, b)
		s.freed = slices.DeleteFunc(s.freed, func(f *Buf) bool { return f == b.real })
	}
}

func (s *model) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"source": func(r *rapid.T) { s.make(r, true) },
		"target": func(r *rapid.T) { s.make(r, false) },
		"dup": func(r *rapid.T) {
			b := s.pick(r)
			s.made(r, &modelBuf{
				real: s.bufs.Dup(b.real), refs: 1,
				off: b.off, size: b.size, dataOff: b.dataOff, dataLen: b.dataLen,
			}, true)
		},
		"ref": func(r *rapid.T) {
			b := s.pick(r)
			require.NoError(r, b.real.Ref())
			b.refs++
		},
		"free": func(r *rapid.T) {
			b := s.pick(r)
			err := b.real.Free()
			if b.refs == 1 && b.prev != nil {
				require.ErrorIs(r, err, ErrChained)
				return
			}
			require.NoError(r, err)
			s.drop(b)
		},
		"free again": func(r *rapid.T) {
			if len(s.freed) == 0 {
				r.Skip("nothing was freed")
			}
			require.ErrorIs(r, rapid.SampledFrom(s.freed).Draw(r, "buf").Free(), ErrFreed)
		},
		"chain": func(r *rapid.T) {
			b, next := s.pick(r), s.pick(r)
			err := b.real.Chain(next.real)
			if next.prev != nil || b.first() == next {
				require.ErrorIs(r, err, ErrChained)
				return
			}
			require.NoError(r, err)
			last := b.list()[len(b.list())-1]
			last.next, next.prev = next, last
		},
		"unchain": func(r *rapid.T) {
			b := s.pick(r)
			err := b.real.Unchain()
			if b.prev == nil {
				require.ErrorIs(r, err, ErrInvalid)
				return
			}
			require.NoError(r, err)
			b.prev.next, b.prev = nil, nil
		},
		"set data": func(r *rapid.T) {
			b := s.pick(r)
			off := rapid.IntRange(-1, b.size+1).Draw(r, "off")
			n := rapid.IntRange(-1, b.size+1).Draw(r, "n")
			err := b.real.SetData(off, n)
			if off < 0 || n < 0 || off+n > b.size {
				require.ErrorIs(r, err, ErrRange)
				return
			}
			require.NoError(r, err)
			b.dataOff, b.dataLen = off, n
		},
		"append": func(r *rapid.T) {
			b := s.pick(r)
			p := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(r, "bytes")
			room := 0
			for _, e := range b.list() {
				room += e.size - e.dataOff - e.dataLen
			}
			err := b.real.Append(p)
			if len(p) > room {
				require.ErrorIs(r, err, ErrRange)
				return
			}
			require.NoError(r, err)
			left := len(p)
			for _, e := range b.list() {
				n := min(left, e.size-e.dataOff-e.dataLen)
				e.dataLen += n
				left -= n
			}
		},
		"expand": func(r *rapid.T) {
			if s.total > 12 {
				r.Skip("big enough")
			}
			require.NoError(r, s.bufs.Expand(1))
			s.total++
		},
		"": s.check,
	}
}

func (s *model) check(r *rapid.T) {
	require.Equal(r, s.total, s.bufs.Total())
	require.Equal(r, s.total-len(s.live), s.bufs.Available())
	for _, f := range s.freed {
		require.ErrorIs(r, f.Err(), ErrFreed)
	}
	for _, b := range s.live {
		require.NoError(r, b.real.Err())
		require.Equal(r, s.m.Addr()+uint64(b.off), b.real.Addr())
		require.Equal(r, b.size, b.real.Len())
		require.Equal(r, b.dataLen, b.real.DataLen())
		require.Equal(r, s.m.Addr()+uint64(b.off+b.dataOff), b.real.DataAddr())
		require.Same(r, b.first().real, b.real.First())
		l := b.list()
		require.Equal(r, len(l), b.real.ListLen())
		require.Same(r, l[len(l)-1].real, b.real.Last())
		var data []byte
		room, e := 0, b.real
		for _, want := range l {
			require.Same(r, want.real, e)
			from := want.off + want.dataOff
			data = append(data, s.m.Bytes()[from:from+want.dataLen]...)
			room += want.size - want.dataOff - want.dataLen
			e = e.Next()
		}
		require.Nil(r, e)
		require.Equal(r, len(data), b.real.ListDataLen())
		require.Equal(r, room, b.real.ListRoom())
		require.True(r, bytes.Equal(data, b.real.AppendBytes(nil)))
	}
}

func TestModel(t *testing.T) {
	m := local(t, modelMemory, mmap.LocalReadWrite)
	rapid.Check(t, func(r *rapid.T) {
		s := &model{m: m, bufs: new(Inventory), bounded: rapid.Bool().Draw(r, "bounded")}
		if s.bounded {
			var err error
			s.bufs, err = New(6)
			require.NoError(r, err)
			s.total = 6
		}
		r.Repeat(s.actions())
		for len(s.live) > 0 {
			b := s.live[0].first()
			require.NoError(r, b.real.Free())
			s.drop(b)
		}
		require.NoError(r, s.bufs.Close())
	})
}
