package syncevent

import (
	"bytes"
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/descriptor"
)

var example = fields{addr: 0x7f1122334400, rkey: 0x21222324, order: littleEndian, publishers: bothPublish, atomics: true}

func TestDescriptorLayout(t *testing.T) {
	b, err := encode(example)
	require.NoError(t, err)
	// The example of docs/descriptors.md.
	assert.Equal(t, "5652424e"+"02"+"03"+"0000000f"+"00007f1122334400"+"21222324"+"01"+"03"+"01"+"20eb2e54", hex.EncodeToString(b))
}

func TestDescriptorRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := fields{
			addr: rapid.Uint64Min(1).Draw(t, "address") &^ 7, rkey: rapid.Uint32().Draw(t, "key"),
			order:      byteOrder(rapid.IntRange(1, 2).Draw(t, "order")),
			publishers: Publishers(rapid.IntRange(1, 3).Draw(t, "publishers")),
		}
		f.addr |= 8
		f.atomics = f.publishers.Has(PublishRemote) && rapid.Bool().Draw(t, "atomics")
		b, err := encode(f)
		require.NoError(t, err)
		got, err := decode(b)
		require.NoError(t, err)
		require.Equal(t, f, got)
	})
}

func TestImportRefuses(t *testing.T) {
	dev := openSoft(t)
	whole, err := encode(example)
	require.NoError(t, err)
	with := func(change func(*fields)) []byte {
		f := example
		change(&f)
		b, err := encode(f)
		require.NoError(t, err)
		return b
	}
	payload := func(kind descriptor.Kind, n int) []byte {
		b, err := descriptor.Encode(kind, append(whole[10:25:25], 0)[:n])
		require.NoError(t, err)
		return b
	}
	for name, c := range map[string]struct {
		desc []byte
		want error
	}{
		"nothing":              {nil, descriptor.ErrTruncated},
		"cut short":            {whole[:len(whole)-1], descriptor.ErrTruncated},
		"followed by a byte":   {append(bytes.Clone(whole), 0), descriptor.ErrTrailing},
		"payload cut short":    {payload(descriptor.SyncEvent, 14), descriptor.ErrTruncated},
		"payload too long":     {payload(descriptor.SyncEvent, 16), descriptor.ErrTrailing},
		"a memory map":         {payload(descriptor.MemoryMap, 15), descriptor.ErrKind},
		"no address":           {with(func(f *fields) { f.addr = 0 }), descriptor.ErrFormat},
		"crooked address":      {with(func(f *fields) { f.addr++ }), descriptor.ErrFormat},
		"no byte order":        {with(func(f *fields) { f.order = 0 }), descriptor.ErrFormat},
		"unknown byte order":   {with(func(f *fields) { f.order = 3 }), descriptor.ErrFormat},
		"no publishers":        {with(func(f *fields) { f.publishers = 0 }), descriptor.ErrFormat},
		"unknown publishers":   {with(func(f *fields) { f.publishers = 7 }), descriptor.ErrFormat},
		"adds, but never sets": {with(func(f *fields) { f.publishers = PublishLocal }), descriptor.ErrFormat},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := Import(dev, c.desc)
			require.ErrorIs(t, err, c.want)
			assert.Nil(t, e)
			assert.ErrorContains(t, err, "import sync event: ")
		})
	}
	_, err = Import(nil, whole)
	require.ErrorIs(t, err, ErrInvalid)
}

func TestSwapped(t *testing.T) {
	dev := openSoft(t)
	f := example
	f.order = littleEndian + bigEndian - hostOrder()
	b, err := encode(f)
	require.NoError(t, err)
	e, err := Import(dev, b)
	require.NoError(t, err)
	assert.True(t, forFriends{e}.Swapped())
	assert.Equal(t, f.addr, forFriends{e}.Addr())
	assert.Equal(t, f.rkey, forFriends{e}.RKey())
}

// Whatever is accepted is what would be written.
func FuzzImport(f *testing.F) {
	for _, seed := range []fields{example, {addr: 8, order: bigEndian, publishers: PublishLocal}, {addr: 8, rkey: 1, order: littleEndian, publishers: PublishRemote}} {
		b, err := encode(seed)
		require.NoError(f, err)
		f.Add(b[10 : len(b)-4])
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, payload []byte) {
		if len(payload) > descriptor.MaxPayload {
			return
		}
		desc, err := descriptor.Encode(descriptor.SyncEvent, payload)
		require.NoError(t, err)
		got, err := decode(desc)
		if err != nil {
			return
		}
		again, err := encode(got)
		require.NoError(t, err)
		require.Equal(t, desc, again)
	})
}
