package oob

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/descriptor"
)

// somePrivateData is one of each kind, and of each kind of offer.
func somePrivateData(t testing.TB) []privateData {
	m, err := descriptor.Encode(descriptor.MemoryMap, append(bytes.Repeat([]byte{0xab}, 20), 0, 0, 0, 8))
	require.NoError(t, err)
	e, err := descriptor.Encode(descriptor.SyncEvent, bytes.Repeat([]byte{0xcd}, eventPayload))
	require.NoError(t, err)
	token := cmToken{1, 2, 3}
	return []privateData{
		{kind: cmRequest, token: token, count: 1, to: math.MaxUint16, offer: descriptor.Bundle{From: "writer"}},
		{kind: cmRequest, token: token, index: 254, count: 255, offer: descriptor.Bundle{From: "writer", Maps: [][]byte{m}, Data: make([]byte, 10)}},
		{kind: cmReply, offer: descriptor.Bundle{From: strings.Repeat("r", 100), Events: [][]byte{e}, Data: []byte("x\x00")}},
		{kind: cmReply, offer: descriptor.Bundle{From: "r", Maps: [][]byte{m}, Data: make([]byte, 167)}},
		{kind: cmBusy, text: "later"},
		{kind: cmRefused},
		{kind: cmWrongNames, offer: descriptor.Bundle{From: "reader", To: "writer"}},
		{kind: cmReport},
		{kind: cmReport, ok: true},
	}
}

func TestPrivateData(t *testing.T) {
	for _, d := range somePrivateData(t) {
		b := d.encode()
		got, err := decodePrivateData(append(bytes.Clone(b), make([]byte, 40)...))
		require.NoError(t, err)
		assert.Equal(t, &d, got)
		if d.kind == cmRequest {
			assert.LessOrEqual(t, len(b), maxRequestData)
		}
		assert.LessOrEqual(t, len(b), maxReplyData)
		_, err = decodePrivateData(append(bytes.Clone(b), 0, 1))
		require.ErrorIs(t, err, descriptor.ErrTrailing)
		for n := range len(b) {
			_, err := decodePrivateData(b[:n])
			require.Error(t, err, "%d of %d bytes", n, len(b))
			if n >= 4 {
				require.ErrorIs(t, err, descriptor.ErrTruncated)
			}
		}
	}
	for name, test := range map[string]struct {
		data string
		want error
	}{
		"nothing":           {"", descriptor.ErrFormat},
		"another program's": {"VB\x01\x01", descriptor.ErrFormat},
		"another version":   {"VC\x01\x01", descriptor.ErrVersion},
		"no kind":           {"VC\x02\x00", descriptor.ErrKind},
		"an unknown kind":   {"VC\x02\x07", descriptor.ErrKind},
		"a text too long":   {"VC\x02\x03\x05abcd", descriptor.ErrTruncated},
		"no flag":           {"VC\x02\x06\x02", descriptor.ErrFormat},
		"no resource":       {"VC\x02\x02\x01a\x05\x00", descriptor.ErrTrailing},
	} {
		_, err := decodePrivateData([]byte(test.data))
		require.ErrorIs(t, err, test.want, name)
	}
}

// A rejection fits whatever its reason, and stays text.
func TestRejectionFits(t *testing.T) {
	for n := range 5 {
		b := rejection(cmRefused, errors.New(strings.Repeat("x", n)+strings.Repeat("ä", 200)))
		require.LessOrEqual(t, len(b), maxRejectData)
		d, err := decodePrivateData(b)
		require.NoError(t, err)
		require.NotContains(t, d.text, "\ufffd")
		require.Greater(t, len(d.text), 140)
	}
	long := strings.Repeat("n", 100)
	require.LessOrEqual(t, len(wrongNames(Ends{Name: long, Peer: long})), maxRejectData)
}

func FuzzPrivateData(f *testing.F) {
	for _, d := range somePrivateData(f) {
		f.Add(d.encode())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := decodePrivateData(b)
		if err != nil {
			return
		}
		again := d.encode()
		require.Equal(t, b[:len(again)], again)
		require.True(t, isZero(b[len(again):]))
	})
}
