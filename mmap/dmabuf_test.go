//go:build linux

package mmap

import (
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// dmaBufPD takes dma-bufs.
type dmaBufPD struct {
	*fakePD
	registered []DMABuf
	iova       uint64
	files      []os.FileInfo
}

func (p *dmaBufPD) RegDMABufMR(buf verbs.DMABuf, access verbs.Access) (verbs.MR, error) {
	p.registered, p.iova = append(p.registered, DMABuf{Offset: buf.Offset, Length: buf.Length}), buf.IOVA
	// The descriptor stays the Map's.
	f := os.NewFile(uintptr(must(duplicate(buf.FD))), "copy")
	defer f.Close()
	p.files = append(p.files, must(f.Stat()))
	return p.RegMR(nil, access)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestDMABuf(t *testing.T) {
	one, two := newDevice("fake0"), newDevice("fake1")
	pds := []*dmaBufPD{{fakePD: one.pd}, {fakePD: two.pd}}
	file := must(os.CreateTemp(t.TempDir(), ""))
	info := must(file.Stat())
	m, err := New(one, Config{DMABuf: &DMABuf{int(file.Fd()), 8192, 100}, PD: pds[0], Permissions: LocalReadWrite | RemoteRead})
	require.NoError(t, err)
	require.NoError(t, file.Close())
	require.NoError(t, m.AddPD(pds[1]))
	for _, pd := range pds {
		assert.Equal(t, []DMABuf{{Offset: 8192, Length: 100}}, pd.registered)
		assert.Equal(t, uint64(8192), pd.iova)
		assert.True(t, os.SameFile(info, pd.files[0]), "the file that was given, though closed since")
		assert.Equal(t, verbs.AccessLocalWrite|verbs.AccessRemoteRead, pd.live[0].access)
	}
	assert.Nil(t, m.Bytes())
	_, err = m.Find([]byte{1})
	assert.ErrorIs(t, err, ErrInvalid)
	assert.Equal(t, uint64(8192), m.Addr())
	assert.Equal(t, 100, m.Len())
	assert.False(t, m.Remote())
	_, err = m.ExportPD(pds[0])
	require.NoError(t, err)
	own := m.dmaBuf.FD
	require.NoError(t, m.Close())
	assert.Empty(t, one.pd.live)
	_, err = duplicate(own)
	require.ErrorIs(t, err, ErrInvalid, "its descriptor is closed")
}

func TestDMABufErrors(t *testing.T) {
	dev := newDevice("fake0")
	file := must(os.CreateTemp(t.TempDir(), ""))
	defer file.Close()
	fd := int(file.Fd())
	for name, c := range map[string]struct {
		cfg  Config
		want error
	}{
		"and memory":    {Config{DMABuf: &DMABuf{fd, 0, 1}, Memory: []byte("x")}, ErrInvalid},
		"and a size":    {Config{DMABuf: &DMABuf{fd, 0, 1}, Size: 1}, ErrInvalid},
		"empty":         {Config{DMABuf: &DMABuf{fd, 0, 0}}, ErrRange},
		"too long":      {Config{DMABuf: &DMABuf{fd, 0, math.MaxUint64}}, ErrRange},
		"too far":       {Config{DMABuf: &DMABuf{fd, math.MaxInt64, 1}}, ErrRange},
		"no file":       {Config{DMABuf: &DMABuf{-1, 0, 1}}, ErrInvalid},
		"not supported": {Config{DMABuf: &DMABuf{fd, 0, 1}}, verbs.ErrNotSupported},
	} {
		m, err := New(dev, c.cfg)
		require.ErrorIs(t, err, c.want, name)
		assert.Nil(t, m)
	}
}
