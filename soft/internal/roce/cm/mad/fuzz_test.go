package mad

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzDecode decodes anything as each of the messages. What is accepted encodes to
// the same bytes again, apart from the fields that are not kept: reserved ones, and
// additional information beyond its length.
func FuzzDecode(f *testing.F) {
	for _, create := range blank {
		m := create()
		var b [Len]byte
		require.NoError(f, m.Encode(&b))
		f.Add(b[:])
		filled := bytes.Repeat([]byte{0xff}, Len)
		copy(filled, b[:headerLen])
		f.Add(bytes.Clone(filled))
		filled[headerLen+8], filled[headerLen+9], filled[headerLen+5] = 72, 72<<1, 72
		f.Add(filled)
	}
	for _, b := range golden(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := DecodeHeader(b)
		if err != nil {
			require.ErrorIs(t, err, ErrMalformed)
			return
		}
		for attribute, create := range blank {
			m := create()
			if err := m.Decode(b); attribute != h.Attribute {
				require.Equal(t, ErrAttribute, err)
				continue
			} else if err != nil {
				require.ErrorIs(t, err, ErrMalformed)
				continue
			}
			var again [Len]byte
			require.NoError(t, m.Encode(&again))
			back := create()
			require.NoError(t, back.Decode(again[:]))
			require.Equal(t, m, back)
		}
	})
}

// FuzzIPHeader decodes anything as the header of RDMA CM.
func FuzzIPHeader(f *testing.F) {
	f.Add(bytes.Repeat([]byte{0}, IPHeaderLen))
	f.Add(append([]byte{0, 0x40, 0x1f, 0x90}, bytes.Repeat([]byte{1}, IPHeaderLen)...))
	f.Add(append([]byte{0, 0x60, 0x1f, 0x90}, bytes.Repeat([]byte{1}, IPHeaderLen)...))
	// An IPv6 header with mapped IPv4 addresses.
	mapped := bytes.Repeat([]byte{0}, IPHeaderLen)
	mapped[1] = 0x60
	copy(mapped[14:], "\xff\xff\x0a\x00\x00\x01")
	copy(mapped[30:], "\xff\xff\x0a\x00\x00\x02")
	f.Add(mapped)
	f.Fuzz(func(t *testing.T, b []byte) {
		var h, back IPHeader
		if h.Decode(b) != nil {
			return
		}
		var again [IPHeaderLen]byte
		h.Encode(&again)
		require.NoError(t, back.Decode(again[:]))
		require.Equal(t, h.SourcePort, back.SourcePort)
		require.Equal(t, h.Source.Unmap(), back.Source.Unmap())
		require.Equal(t, h.Destination.Unmap(), back.Destination.Unmap())
	})
}
