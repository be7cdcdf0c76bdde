package mmap

import (
	"encoding/hex"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestExportAndImport(t *testing.T) {
	dev, peer := newDevice("fake0"), newDevice("peer")
	local, err := Alloc(dev, 12_345, LocalReadWrite|RemoteRead|RemoteWrite|RemoteAtomic|RelaxedOrdering)
	require.NoError(t, err)
	desc, err := local.Export(dev)
	require.NoError(t, err)

	for _, form := range [][]byte{desc, []byte(descriptor.Armor(desc))} {
		m, err := Import(peer, form)
		require.NoError(t, err)
		assert.True(t, m.Remote())
		assert.Equal(t, local.Addr(), m.Addr())
		assert.Equal(t, local.Len(), m.Len())
		assert.Equal(t, dev.pd.live[0].RKey(), m.RKey())
		assert.Equal(t, RemoteRead|RemoteWrite|RemoteAtomic, m.Permissions())
		assert.Equal(t, []verbs.Device{peer}, m.Friends(friend.Package{}).Devices())
		assert.Nil(t, m.Bytes())
		assert.Empty(t, peer.pd.live)

		_, err = m.LKey(peer.pd)
		require.ErrorIs(t, err, ErrRemote)
		_, err = m.Export(peer)
		require.ErrorIs(t, err, ErrRemote)
		require.ErrorIs(t, m.AddDevice(dev), ErrRemote)
		require.ErrorIs(t, m.RemoveDevice(peer), ErrRemote)
		require.NoError(t, forFriends{m}.Hold())
		require.ErrorIs(t, m.Close(), ErrInUse)
		require.NoError(t, forFriends{m}.Release())
		require.NoError(t, m.Close())
		require.NoError(t, m.Close(), "closing again")
	}

	require.ErrorIs(t, local.AddDevice(peer), ErrInUse, "the exported keys have to stay good")
	require.ErrorIs(t, local.RemoveDevice(dev), ErrInUse)
	again, err := local.Export(dev)
	require.NoError(t, err)
	assert.Equal(t, desc, again)
	require.NoError(t, local.Close())
}

// A Map as its peers have it outlives it, as an import does.
func TestAsRemote(t *testing.T) {
	dev := newDevice("fake0")
	local, err := Alloc(dev, 12_345, LocalReadWrite|RemoteWrite)
	require.NoError(t, err)
	m, err := local.AsRemote(dev)
	require.NoError(t, err)
	assert.True(t, m.Remote())
	assert.Equal(t, local.Addr(), m.Addr())
	assert.Equal(t, RemoteWrite, m.Permissions())
	_, err = m.AsRemote(dev)
	require.ErrorIs(t, err, ErrRemote)
	_, err = local.AsRemote(nil)
	require.ErrorIs(t, err, ErrInvalid)
	require.NoError(t, local.Close())
	require.Equal(t, 12_345, m.Len())
	require.NoError(t, m.Close())

	barred, err := Alloc(dev, 8, LocalReadWrite)
	require.NoError(t, err)
	_, err = barred.AsRemote(dev)
	require.ErrorIs(t, err, ErrPermission)
	require.NoError(t, barred.Close())
}

func TestExportErrors(t *testing.T) {
	dev := newDevice("fake0")
	m, err := Alloc(dev, 8, LocalReadWrite|RelaxedOrdering)
	require.NoError(t, err)
	_, err = m.Export(dev)
	require.ErrorIs(t, err, ErrPermission)
	_, err = m.Export(nil)
	require.ErrorIs(t, err, ErrInvalid)
	_, err = m.ExportPD(nil)
	require.ErrorIs(t, err, ErrInvalid)
	require.NoError(t, m.AddDevice(newDevice("fake1")), "a failed export leaves the Map as it was")
	require.NoError(t, m.Close())
}

// payload makes a memory map descriptor of any values.
func payload(t testing.TB, addr, size uint64, rkey, perm uint32) []byte {
	b, err := encode(fields{addr, size, rkey, Permission(perm)})
	require.NoError(t, err)
	return b
}

func TestImportRefuses(t *testing.T) {
	dev := newDevice("fake0")
	good := payload(t, 0x1000, 64, 7, uint32(RemoteRead))
	short, err := descriptor.Encode(descriptor.MemoryMap, make([]byte, 23))
	require.NoError(t, err)
	long, err := descriptor.Encode(descriptor.MemoryMap, append(good[10:34:34], 0))
	require.NoError(t, err)
	other, err := descriptor.Encode(descriptor.Connection, good[10:34])
	require.NoError(t, err)
	for name, c := range map[string]struct {
		in   []byte
		want error
	}{
		"nothing":             {nil, descriptor.ErrTruncated},
		"garbage":             {[]byte("garbage"), descriptor.ErrFormat},
		"a connection":        {other, descriptor.ErrKind},
		"a field missing":     {short, descriptor.ErrTruncated},
		"a byte too many":     {long, descriptor.ErrTrailing},
		"no bytes":            {payload(t, 0x1000, 0, 7, 2), descriptor.ErrFormat},
		"length above an int": {payload(t, 0, math.MaxInt+1, 7, 2), descriptor.ErrFormat},
		"length of all ones":  {payload(t, 0, math.MaxUint64, 7, 2), descriptor.ErrFormat},
		"past the end":        {payload(t, math.MaxUint64-62, 64, 7, 2), descriptor.ErrFormat},
		"no remote right":     {payload(t, 0x1000, 64, 7, 0), descriptor.ErrFormat},
		"a local right":       {payload(t, 0x1000, 64, 7, 3), descriptor.ErrFormat},
		"an unknown right":    {payload(t, 0x1000, 64, 7, 2|1<<31), descriptor.ErrFormat},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := Import(dev, c.in)
			require.ErrorIs(t, err, c.want)
			assert.Nil(t, m)
		})
	}
	_, err = Import(nil, good)
	require.ErrorIs(t, err, ErrInvalid)
	m, err := Import(dev, payload(t, math.MaxUint64-63, 64, 7, 2))
	require.NoError(t, err, "up to the last byte is fine")
	require.NoError(t, m.Close())
}

// The example in docs/descriptors.md.
func TestDescriptorLayout(t *testing.T) {
	b, err := hex.DecodeString("5652424e020200000018" + "0102030405060708" + "0000000000001111" + "21222324" + "00000006" + "f9fd4664")
	require.NoError(t, err)
	m, err := Import(newDevice("fake0"), b)
	require.NoError(t, err)
	assert.Equal(t, uint64(0x0102030405060708), m.Addr())
	assert.Equal(t, 0x1111, m.Len())
	assert.Equal(t, uint32(0x21222324), m.RKey())
	assert.Equal(t, RemoteRead|RemoteWrite, m.Permissions())
	require.NoError(t, m.Close())

	dev := newDevice("fake1")
	local, err := Alloc(dev, 0x1111, LocalReadWrite|RemoteRead|RemoteWrite)
	require.NoError(t, err)
	got, err := local.Export(dev)
	require.NoError(t, err)
	assert.Equal(t, payload(t, local.Addr(), 0x1111, dev.pd.live[0].RKey(), 6), got)
	require.NoError(t, local.Close())
}

func FuzzImport(f *testing.F) {
	good := payload(f, 0x7f0000001000, 4096, 0xdeadbeef, uint32(RemoteRead|RemoteWrite))
	f.Add(good)
	f.Add([]byte(descriptor.Armor(good)))
	f.Add(payload(f, math.MaxUint64, 1, 1, 8))
	dev := newDevice("fake0")
	f.Fuzz(func(t *testing.T, in []byte) {
		m, err := Import(dev, in)
		if err != nil {
			require.Nil(t, m)
			return
		}
		require.Positive(t, m.Len())
		require.GreaterOrEqual(t, m.Addr()+uint64(m.Len()-1), m.Addr())
		require.NotZero(t, m.Permissions()&remoteRights)
		require.Equal(t, descriptor.Armor(in), descriptor.Armor(payload(t, m.Addr(), uint64(m.Len()), m.RKey(), uint32(m.Permissions()))))
	})
}

// FuzzImportPayload reaches behind the checksum, which fuzzing hardly gets right.
func FuzzImportPayload(f *testing.F) {
	f.Add(payload(f, 0x1000, 64, 7, 2)[10:34])
	dev := newDevice("fake0")
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > descriptor.MaxPayload {
			return
		}
		b, err := descriptor.Encode(descriptor.MemoryMap, in)
		require.NoError(t, err)
		if m, err := Import(dev, b); err == nil {
			require.Len(t, in, 24)
			require.Positive(t, m.Len())
			require.GreaterOrEqual(t, m.Addr()+uint64(m.Len()-1), m.Addr())
		}
	})
}

// A peer's memory without a descriptor.
func TestFromKey(t *testing.T) {
	dev := newDevice("fake0")
	m, err := FromKey(dev, 0x1000, 16, 7, RemoteRead|RemoteWrite)
	require.NoError(t, err)
	require.True(t, m.Remote())
	require.EqualValues(t, 0x1000, m.Addr())
	require.Equal(t, 16, m.Len())
	require.EqualValues(t, 7, m.RKey())
	require.Equal(t, RemoteRead|RemoteWrite, m.Permissions())
	require.NoError(t, m.Close())
	for _, f := range []func() (*Map, error){
		func() (*Map, error) { return FromKey(nil, 1, 1, 1, RemoteRead) },
		func() (*Map, error) { return FromKey(dev, 1, 0, 1, RemoteRead) },
		func() (*Map, error) { return FromKey(dev, 1, -1, 1, RemoteRead) },
		func() (*Map, error) { return FromKey(dev, math.MaxUint64, 2, 1, RemoteRead) },
		func() (*Map, error) { return FromKey(dev, 1, 1, 1, 0) },
		func() (*Map, error) { return FromKey(dev, 1, 1, 1, LocalReadWrite|RemoteRead) },
	} {
		_, err := f()
		require.ErrorIs(t, err, ErrInvalid)
	}
}
