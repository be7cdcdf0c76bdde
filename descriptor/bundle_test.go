package descriptor

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestBundleLayout(t *testing.T) {
	c, m := mustEncode(t, Connection, []byte("c")), mustEncode(t, MemoryMap, []byte("m"))
	b := Bundle{From: "ab", To: "c", Connections: [][]byte{c, []byte(Armor(c))}, Maps: [][]byte{m}, Data: []byte("own")}
	desc, err := b.Encode()
	require.NoError(t, err)
	payload, err := Decode(Bundled, desc)
	require.NoError(t, err)
	assert.Equal(t, "0002"+hex.EncodeToString([]byte("ab"))+"0001"+hex.EncodeToString([]byte("c"))+
		"0002"+"000f"+hex.EncodeToString(c)+"000f"+hex.EncodeToString(c)+
		"0001"+"000f"+hex.EncodeToString(m)+"0000"+"0000"+"0003"+hex.EncodeToString([]byte("own")), hex.EncodeToString(payload))

	for _, form := range [][]byte{desc, []byte(Armor(desc))} {
		got, err := DecodeBundle(form)
		require.NoError(t, err)
		assert.Equal(t, &Bundle{From: "ab", To: "c", Connections: [][]byte{c, c}, Maps: [][]byte{m}, Data: []byte("own")}, got)
	}
}

func TestBundleRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := func(kind Kind) (list [][]byte) {
			for _, payload := range rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 60), 0, 20).Draw(t, kind.String()) {
				b, err := Encode(kind, payload)
				require.NoError(t, err)
				list = append(list, b)
			}
			return list
		}
		in := &Bundle{From: "from", To: "to", Connections: list(Connection), Maps: list(MemoryMap), Events: list(SyncEvent), Endpoints: list(Endpoint)}
		if data := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "data"); len(data) > 0 {
			in.Data = data
		}
		desc, err := in.Encode()
		require.NoError(t, err)
		out, err := DecodeBundle(desc)
		require.NoError(t, err)
		require.Equal(t, in, out)
		clear(desc)
		again, err := out.Encode()
		require.NoError(t, err)
		_, err = DecodeBundle(again)
		require.NoError(t, err, "it shares no memory with what it came from")
	})
}

func TestBundleRefuses(t *testing.T) {
	c := mustEncode(t, Connection, []byte("c"))
	whole := Bundle{From: "a", To: "b", Connections: [][]byte{c}}
	for name, c := range map[string]struct {
		change func(*Bundle)
		want   error
	}{
		"no sender":            {func(b *Bundle) { b.From = "" }, ErrFormat},
		"no addressee":         {func(b *Bundle) { b.To = "" }, ErrFormat},
		"long name":            {func(b *Bundle) { b.To = strings.Repeat("x", maxName+1) }, ErrFormat},
		"name of control":      {func(b *Bundle) { b.From = "a\x1b[2J" }, ErrFormat},
		"name of no UTF-8":     {func(b *Bundle) { b.From = "\xff" }, ErrFormat},
		"connection as map":    {func(b *Bundle) { b.Maps = b.Connections }, ErrKind},
		"connection as event":  {func(b *Bundle) { b.Events = b.Connections }, ErrKind},
		"half a connection":    {func(b *Bundle) { b.Connections = [][]byte{c[:12]} }, ErrTruncated},
		"a bundle in a bundle": {func(b *Bundle) { b.Maps = [][]byte{mustEncode(t, Bundled, nil)} }, ErrKind},
		"too much data":        {func(b *Bundle) { b.Data = make([]byte, MaxPayload) }, ErrTooBig},
		"too many":             {func(b *Bundle) { b.Connections = make([][]byte, 1<<17); fillWith(b.Connections, c) }, ErrTooBig},
	} {
		t.Run(name, func(t *testing.T) {
			b := whole
			c.change(&b)
			_, err := b.Encode()
			require.ErrorIs(t, err, c.want)
		})
	}

	desc, err := whole.Encode()
	require.NoError(t, err)
	payload, err := Decode(Bundled, desc)
	require.NoError(t, err)
	for n := range len(payload) {
		_, err := DecodeBundle(mustEncode(t, Bundled, payload[:n]))
		require.Error(t, err, "%d bytes", n)
	}
	_, err = DecodeBundle(mustEncode(t, Bundled, append(bytes.Clone(payload), 0)))
	require.ErrorIs(t, err, ErrTrailing)
	lying := bytes.Clone(payload)
	lying[6], lying[7] = 0xff, 0xff // 65535 connections
	_, err = DecodeBundle(mustEncode(t, Bundled, lying))
	require.Error(t, err)
	_, err = DecodeBundle(c)
	require.ErrorIs(t, err, ErrKind)
}

func fillWith(list [][]byte, b []byte) {
	for i := range list {
		list[i] = b
	}
}

func FuzzBundle(f *testing.F) {
	c, err := Encode(Connection, []byte("c"))
	require.NoError(f, err)
	for _, b := range []Bundle{{From: "a", To: "b"}, {From: "a", To: "b", Connections: [][]byte{c, c}, Data: []byte("own")}} {
		desc, err := b.Encode()
		require.NoError(f, err)
		payload, err := Decode(Bundled, desc)
		require.NoError(f, err)
		f.Add(payload)
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		desc, err := Encode(Bundled, payload)
		if err != nil {
			return
		}
		b, err := DecodeBundle(desc)
		if err != nil {
			return
		}
		again, err := b.Encode()
		require.NoError(t, err)
		require.Equal(t, desc, again, "a bundle has one binary form")
	})
}
