package syncevent

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft"
)

const all = ^uint64(0)

func TestLocalEvent(t *testing.T) {
	e, err := New(Config{Name: "door"})
	require.NoError(t, err)
	require.NoError(t, e.Set(5))
	old, err := e.Add(7)
	require.NoError(t, err)
	assert.Equal(t, uint64(5), old)
	v, err := e.Get()
	require.NoError(t, err)
	assert.Equal(t, uint64(12), v)
	done := make(chan uint64)
	go func() {
		v, err := e.WaitGreater(context.Background(), 100, all)
		assert.NoError(t, err)
		done <- v
	}()
	time.Sleep(5 * time.Millisecond)
	require.ErrorIs(t, e.Close(), ErrInUse)
	require.NoError(t, e.Set(100))
	require.NoError(t, e.Set(101))
	assert.Equal(t, uint64(101), <-done)
	require.NoError(t, e.Close())
	require.ErrorIs(t, e.Close(), ErrClosed)
	_, err = e.Get()
	require.ErrorIs(t, err, ErrClosed)
}

func TestExportImport(t *testing.T) {
	dev, err := soft.Open(soft.Config{})
	require.NoError(t, err)
	e, err := New(Config{Device: dev, Publishers: PublishLocal | PublishRemote})
	require.NoError(t, err)
	desc, err := e.Export()
	require.NoError(t, err)
	r, err := Import(dev, desc)
	require.NoError(t, err)
	assert.Equal(t, e.Addr(), r.Addr())
	assert.NotZero(t, r.RKey())
	assert.False(t, r.Swapped())
	assert.Equal(t, e.Publishers(), r.Publishers())
	require.ErrorIs(t, r.Set(1), ErrRemote)
	require.NoError(t, r.Close())
	require.NoError(t, e.Close())
	require.NoError(t, dev.Close())
}
