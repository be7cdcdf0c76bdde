package mmap

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/friend"
)

func TestWatch(t *testing.T) {
	one, two, silent := newDevice("fake0"), newDevice("fake1"), newDevice("fake2")
	one.pd.watchable, two.pd.watchable = true, true
	m, err := Alloc(one, 4096, LocalReadWrite|RemoteWrite)
	require.NoError(t, err)
	require.NoError(t, m.AddDevice(two))
	calls := 0
	cancel, complete, err := m.Friends(friend.Package{}).Watch(8, 16, func() { calls++ })
	require.NoError(t, err)
	assert.True(t, complete)
	for _, mr := range []*watchedMR{one.pd.watched[0], two.pd.watched[0]} {
		require.Len(t, mr.watches, 1)
		assert.Equal(t, uint64(8), mr.watches[0].off)
		assert.Equal(t, uint64(16), mr.watches[0].n)
		mr.watches[0].f()
	}
	assert.Equal(t, 2, calls)
	cancel()
	assert.Empty(t, one.pd.watched[0].watches)
	assert.Empty(t, two.pd.watched[0].watches)

	require.NoError(t, m.AddDevice(silent))
	cancel, complete, err = m.Friends(friend.Package{}).Watch(0, 4096, func() { calls++ })
	require.NoError(t, err)
	assert.False(t, complete, "one of the three does not notice")
	assert.Len(t, one.pd.watched[0].watches, 1)
	cancel()

	two.pd.watched[0].refuse = true
	_, _, err = m.Friends(friend.Package{}).Watch(0, 8, func() {})
	require.ErrorIs(t, err, errDriver)
	assert.ErrorContains(t, err, "fake1")
	assert.Empty(t, one.pd.watched[0].watches, "nothing is left of it")

	for _, c := range []struct{ off, n int }{{-1, 8}, {0, 0}, {0, -1}, {0, 4097}, {4096, 1}, {4097, 1}} {
		_, _, err := m.Friends(friend.Package{}).Watch(c.off, c.n, func() {})
		require.ErrorIs(t, err, ErrRange, "%d bytes from %d", c.n, c.off)
	}
	_, _, err = m.Friends(friend.Package{}).Watch(0, 8, nil)
	require.ErrorIs(t, err, ErrInvalid)
	desc, err := m.Export(one)
	require.NoError(t, err)
	imported, err := Import(one, desc)
	require.NoError(t, err)
	_, _, err = imported.Friends(friend.Package{}).Watch(0, 8, func() {})
	require.ErrorIs(t, err, ErrRemote)
	require.NoError(t, m.Close())
	_, _, err = m.Friends(friend.Package{}).Watch(0, 8, func() {})
	require.ErrorIs(t, err, ErrClosed)
}

func TestExportKey(t *testing.T) {
	dev := newDevice("fake0")
	m, err := Alloc(dev, 64, RemoteRead)
	require.NoError(t, err)
	other, err := dev.AllocPD()
	require.NoError(t, err)
	_, err = m.ExportKey(other)
	require.ErrorIs(t, err, ErrNotRegistered)
	_, err = m.ExportKey(nil)
	require.ErrorIs(t, err, ErrInvalid)
	require.NoError(t, m.AddPD(other), "nothing was given away so far")
	key, err := m.ExportKey(other)
	require.NoError(t, err)
	assert.Equal(t, uint32(1001|1<<31), key)
	require.ErrorIs(t, m.AddDevice(newDevice("fake1")), ErrInUse)
	require.NoError(t, m.Close())
	_, err = m.ExportKey(other)
	require.ErrorIs(t, err, ErrClosed)
	closed, err := Alloc(dev, 64, LocalReadWrite)
	require.NoError(t, err)
	_, err = closed.ExportKey(dev.pd)
	require.ErrorIs(t, err, ErrPermission)
	require.NoError(t, closed.Close())
}
