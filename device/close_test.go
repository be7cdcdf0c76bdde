package device_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/syncevent"
	"github.com/verbena-rdma/verbena/verbs"
)

// Closing a device closes what memory was made on it, unless it is in use.
func TestCloseClosesMemory(t *testing.T) {
	dev, err := device.Open("soft-lo")
	require.NoError(t, err)
	other, err := device.Open("soft-lo")
	require.NoError(t, err)
	freed := 0
	first, err := mmap.New(dev, mmap.Config{Size: 4096, OnFree: func([]byte) { freed++ }})
	require.NoError(t, err)
	byHand, err := mmap.New(dev, mmap.Config{Size: 4096, OnFree: func([]byte) { freed++ }})
	require.NoError(t, err)
	require.NoError(t, byHand.Close())
	shared, err := mmap.Alloc(other, 4096, mmap.LocalReadOnly)
	require.NoError(t, err)
	require.NoError(t, shared.AddDevice(dev))
	event, err := syncevent.New(dev, syncevent.Config{})
	require.NoError(t, err)

	moved, err := mmap.Alloc(other, 4096, mmap.LocalReadOnly)
	require.NoError(t, err)
	require.NoError(t, moved.AddDevice(dev))
	require.NoError(t, moved.RemoveDevice(other))

	require.NoError(t, other.Close())
	for _, m := range []*mmap.Map{shared, moved} {
		require.NoError(t, m.Friends(friend.Package{}).Hold(), "it is registered with a device that is open")
		m.Bytes()[0] = 1
		require.NoError(t, m.Friends(friend.Package{}).Release())
	}

	var bufs bufinv.Inventory
	inUse, err := mmap.Alloc(dev, 4096, mmap.LocalReadOnly)
	require.NoError(t, err)
	buf := bufs.Source(inUse, 0, 1)
	require.ErrorIs(t, dev.Close(), verbs.ErrInUse)
	require.NoError(t, buf.Free())

	require.NoError(t, dev.Close())
	assert.Equal(t, 2, freed)
	require.ErrorIs(t, first.Friends(friend.Package{}).Hold(), mmap.ErrClosed)
	for _, m := range []*mmap.Map{inUse, shared, moved} {
		require.ErrorIs(t, m.Friends(friend.Package{}).Hold(), mmap.ErrClosed)
	}
	_, err = event.Get()
	require.ErrorIs(t, err, syncevent.ErrClosed)
	require.NoError(t, first.Close())
	require.NoError(t, event.Close())
	require.NoError(t, dev.Close())
}

// While a context runs, its memory stays: two deferred calls are enough at the end.
func TestCloseWhileRunning(t *testing.T) {
	dev, err := device.Open("soft-lo")
	require.NoError(t, err)
	engine := pe.New(pe.Config{})
	r, err := rdma.New(dev, rdma.Config{Engine: engine})
	require.NoError(t, err)
	m, err := mmap.Alloc(dev, 4096, mmap.LocalReadOnly)
	require.NoError(t, err)
	require.NoError(t, r.Start())
	require.ErrorIs(t, dev.Close(), verbs.ErrInUse)
	require.NoError(t, m.Friends(friend.Package{}).Hold(), "nothing was closed")
	require.NoError(t, m.Friends(friend.Package{}).Release())
	require.NoError(t, engine.Close())
	require.NoError(t, dev.Close())
	require.ErrorIs(t, m.Friends(friend.Package{}).Hold(), mmap.ErrClosed)
	require.ErrorIs(t, engine.Run(context.Background()), pe.ErrClosed)
}
