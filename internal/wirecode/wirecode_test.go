package wirecode

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPayloadLayout(t *testing.T) {
	var w Writer
	w.Uint8(1)
	w.Bool(true)
	w.Bool(false)
	w.Uint16(0x0203)
	w.Uint32(0x04050607)
	w.Uint64(0x08090a0b0c0d0e0f)
	w.Fixed([]byte("four"))
	w.Counted([]byte("abc"))
	w.Counted(nil)
	payload, err := w.Payload()
	require.NoError(t, err)
	require.Equal(t, []byte("\x01\x01\x00\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0ffour\x00\x03abc\x00\x00"), payload)

	r := NewReader(payload)
	var four [4]byte
	assert.Equal(t, uint8(1), r.Uint8())
	assert.True(t, r.Bool())
	assert.False(t, r.Bool())
	assert.Equal(t, uint16(0x0203), r.Uint16())
	assert.Equal(t, uint32(0x04050607), r.Uint32())
	assert.Equal(t, uint64(0x08090a0b0c0d0e0f), r.Uint64())
	r.Fixed(four[:])
	assert.Equal(t, "four", string(four[:]))
	assert.Equal(t, []byte("abc"), r.Counted())
	assert.Empty(t, r.Counted())
	require.NoError(t, r.Err())
	require.NoError(t, r.Done())
}

// One list of fields writes a payload and reads it again.
func TestCoder(t *testing.T) {
	type fields struct {
		a uint8
		b bool
		c uint16
		d uint32
		e uint64
		f [4]byte
		g []byte
	}
	list := func(c Coder, v *fields) {
		c.Uint8(&v.a)
		c.Bool(&v.b)
		c.Uint16(&v.c)
		c.Uint32(&v.d)
		c.Uint64(&v.e)
		c.Fixed(v.f[:])
		c.Counted(&v.g)
	}
	in, out := fields{1, true, 0x0203, 0x04050607, 0x08090a0b0c0d0e0f, [4]byte{'f', 'o', 'u', 'r'}, []byte("abc")}, fields{}
	var w Writer
	c := WriteTo(&w)
	require.False(t, c.Reading())
	list(c, &in)
	payload, err := w.Payload()
	require.NoError(t, err)
	require.Equal(t, []byte("\x01\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0ffour\x00\x03abc"), payload)
	r := NewReader(payload)
	require.Equal(t, len(payload), r.Left())
	c = ReadFrom(r)
	require.True(t, c.Reading())
	list(c, &out)
	require.NoError(t, r.Done())
	require.Equal(t, in, out)
	require.Zero(t, r.Left())
}

func TestWriterKeepsItsFirstError(t *testing.T) {
	var w Writer
	w.Counted(make([]byte, 1<<16))
	w.Uint8(1)
	_, err := w.Payload()
	require.ErrorIs(t, err, ErrTooBig)
	assert.Contains(t, err.Error(), "65536 bytes in one field")

	w = Writer{}
	w.Fixed(make([]byte, MaxPayload))
	w.Uint8(1)
	w.Bool(true)
	_, err = w.Payload()
	require.ErrorIs(t, err, ErrTooBig)
}

func TestReaderKeepsItsFirstError(t *testing.T) {
	r := NewReader([]byte{1, 2, 3})
	assert.Equal(t, uint16(0x0102), r.Uint16())
	assert.Zero(t, r.Uint32())
	first := r.Err()
	require.ErrorIs(t, first, ErrTruncated)
	dst := []byte{9, 9}
	r.Fixed(dst)
	assert.Equal(t, []byte{0, 0}, dst)
	assert.Zero(t, r.Uint8())
	assert.Zero(t, r.Uint16())
	assert.Zero(t, r.Uint64())
	assert.False(t, r.Bool())
	assert.Nil(t, r.Counted())
	assert.Equal(t, first, r.Done())
}

func TestReaderRefuses(t *testing.T) {
	r := NewReader([]byte{2})
	assert.False(t, r.Bool())
	require.ErrorIs(t, r.Done(), ErrFormat)

	r = NewReader([]byte{0, 3, 'a', 'b'})
	assert.Nil(t, r.Counted())
	require.ErrorIs(t, r.Done(), ErrTruncated)

	r = NewReader([]byte{1, 2})
	r.Uint8()
	require.NoError(t, r.Err())
	require.ErrorIs(t, r.Done(), ErrTrailing)
}

// FuzzReader reads fields in an order that the input chooses, and writes back
// what it has read: that gives the input again, or there was an error.
func FuzzReader(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6}, []byte("\x01\x00\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10four\x00\x03abc"))
	f.Fuzz(func(t *testing.T, order, payload []byte) {
		if len(payload) > MaxPayload {
			return
		}
		r := NewReader(payload)
		var w Writer
		for _, field := range order {
			switch field % 7 {
			case 0:
				w.Uint8(r.Uint8())
			case 1:
				w.Bool(r.Bool())
			case 2:
				w.Uint16(r.Uint16())
			case 3:
				w.Uint32(r.Uint32())
			case 4:
				w.Uint64(r.Uint64())
			case 5:
				var b [4]byte
				r.Fixed(b[:])
				w.Fixed(b[:])
			case 6:
				w.Counted(r.Counted())
			}
			if r.Err() != nil {
				return
			}
		}
		if r.Done() != nil {
			return
		}
		got, err := w.Payload()
		require.NoError(t, err)
		require.True(t, bytes.Equal(payload, got))
	})
}
