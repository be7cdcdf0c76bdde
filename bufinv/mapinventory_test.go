package bufinv

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/mmap"
)

func TestBuffersStraightFromAMap(t *testing.T) {
	m := local(t, 4096, mmap.LocalReadWrite)
	b := Source(m, 16, 8)
	require.NoError(t, b.Err())
	require.Equal(t, 8, b.DataLen())
	require.ErrorIs(t, m.Close(), mmap.ErrInUse)
	require.NoError(t, b.Free())
	require.ErrorIs(t, b.Err(), ErrFreed)
	room := Target(m, 0, 64)
	require.Zero(t, room.DataLen())
	require.NoError(t, room.Free())
	require.ErrorIs(t, Source(m, 4090, 8).Err(), ErrRange)
	require.ErrorIs(t, Source(nil, 0, 8).Err(), ErrInvalid)
	require.ErrorIs(t, Target(nil, 0, 8).Err(), ErrInvalid)
	require.ErrorIs(t, Source(new(mmap.Map), 0, 8).Err(), ErrRange)

	// Once there are as many as are out at a time, none is made.
	other := local(t, 4096, mmap.LocalReadWrite)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		l := List(Source(other, 0, 8), Target(other, 8, 8))
		if l.Err() == nil {
			_ = l.Free()
		}
	}))
	// From any goroutine.
	var wg sync.WaitGroup
	fresh := local(t, 4096, mmap.LocalReadWrite)
	for range 8 {
		wg.Go(func() {
			for range 100 {
				if b := Source(fresh, 0, 8); b.Err() == nil {
					_ = b.Free()
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, fresh.Close())
	require.ErrorIs(t, Source(fresh, 0, 8).Err(), mmap.ErrClosed)
}
