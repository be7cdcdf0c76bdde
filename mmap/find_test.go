package mmap

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Every slice within the memory is found, and none that has a byte outside, wherever it begins.
func TestFind(t *testing.T) {
	dev := newDevice("fake0")
	around := make([]byte, 300)
	m, err := Register(dev, around[100:200], LocalReadWrite|RemoteRead)
	require.NoError(t, err)
	for first := range around {
		for _, n := range []int{1, 2, 99, 100, 101, 150} {
			if first+n > len(around) {
				break
			}
			off, err := m.Find(around[first : first+n])
			if first < 100 || first+n > 200 {
				require.ErrorIs(t, err, ErrRange, "%d bytes from %d", n, first)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, first-100, off)
		}
	}
	_, err = m.Find([]byte{1})
	require.ErrorIs(t, err, ErrRange)
	for _, empty := range [][]byte{nil, around[150:150], {}} {
		_, err := m.Find(empty)
		require.ErrorIs(t, err, ErrInvalid)
	}
	inside := around[100:110]
	require.Zero(t, testing.AllocsPerRun(2000, func() { _, _ = m.Find(inside) }))

	desc, err := m.Export(dev)
	require.NoError(t, err)
	remote, err := Import(newDevice("peer"), desc)
	require.NoError(t, err)
	_, err = remote.Find(inside)
	require.ErrorIs(t, err, ErrRemote)
	require.NoError(t, remote.Close())
	require.NoError(t, m.Close())
	_, err = m.Find(inside)
	require.ErrorIs(t, err, ErrClosed)
}
