package mmap_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// What can be lent of a memory map, and what the descriptor of it says.
func TestLend(t *testing.T) {
	dev, err := soft.Open(soft.Config{})
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	pd := dev.DefaultPD()
	m, err := mmap.Alloc(dev, 4096, mmap.LocalReadWrite|mmap.BindWindows)
	require.NoError(t, err)
	assert.Equal(t, "LocalReadWrite|BindWindows", m.Permissions().String())
	_, err = m.Export(dev)
	require.ErrorIs(t, err, mmap.ErrPermission, "by itself it is not open to peers")

	mr, err := m.Friends(friend.Package{}).WindowMR(pd, 96, 4000, mmap.RemoteWrite|mmap.RemoteAtomic)
	require.NoError(t, err)
	assert.Equal(t, verbs.AccessLocalWrite|verbs.AccessMWBind, mr.Access())
	desc, err := m.Friends(friend.Package{}).ExportWindow(96, 4000, 0x1234, mmap.RemoteWrite)
	require.NoError(t, err)
	peer, err := mmap.Import(dev, desc)
	require.NoError(t, err)
	assert.Equal(t, []any{m.Addr() + 96, 4000, uint32(0x1234), mmap.RemoteWrite}, []any{peer.Addr(), peer.Len(), peer.RKey(), peer.Permissions()})

	readOnly, err := mmap.Alloc(dev, 64, mmap.BindWindows)
	require.NoError(t, err)
	plain, err := mmap.Alloc(dev, 64, mmap.LocalReadWrite|mmap.RemoteWrite)
	require.NoError(t, err)
	other, err := dev.AllocPD()
	require.NoError(t, err)
	for name, c := range map[string]struct {
		m    *mmap.Map
		pd   verbs.PD
		off  int
		n    int
		perm mmap.Permission
		want error
	}{
		"beyond the end":      {m, pd, 4096, 1, mmap.RemoteRead, mmap.ErrRange},
		"no bytes":            {m, pd, 0, 0, mmap.RemoteRead, mmap.ErrRange},
		"no permission":       {m, pd, 0, 1, 0, mmap.ErrPermission},
		"a local one":         {m, pd, 0, 1, mmap.LocalReadWrite | mmap.RemoteRead, mmap.ErrPermission},
		"not bindable":        {plain, pd, 0, 1, mmap.RemoteRead, mmap.ErrPermission},
		"no local write":      {readOnly, pd, 0, 1, mmap.RemoteWrite, mmap.ErrPermission},
		"another domain":      {m, other, 0, 1, mmap.RemoteRead, mmap.ErrNotRegistered},
		"memory of the peer":  {peer, pd, 0, 1, mmap.RemoteRead, mmap.ErrRemote},
		"reads of such a map": {readOnly, pd, 0, 1, mmap.RemoteRead, nil},
	} {
		_, err := c.m.Friends(friend.Package{}).WindowMR(c.pd, c.off, c.n, c.perm)
		require.ErrorIs(t, err, c.want, name)
	}
	require.NoError(t, other.Close())
	for _, each := range []*mmap.Map{peer, readOnly, plain, m} {
		require.NoError(t, each.Close())
	}
	_, err = m.Friends(friend.Package{}).WindowMR(pd, 0, 1, mmap.RemoteRead)
	require.ErrorIs(t, err, mmap.ErrClosed)
}
