package wirecode

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fields has one of each kind of field.
type fields struct {
	a    uint8
	b, c bool
	d    uint16
	e    uint32
	f    uint64
	g    int // in two bytes
	h    [4]byte
	i, j []byte
}

func (v *fields) code(c *Coder) {
	c.Uint8(&v.a)
	c.Bool(&v.b)
	c.Bool(&v.c)
	c.Uint16(&v.d)
	c.Uint32(&v.e)
	c.Uint64(&v.f)
	Int(c, &v.g, 2)
	c.Fixed(v.h[:])
	c.Counted(&v.i)
	c.Counted(&v.j)
}

const layout = "\x01\x01\x00\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10\x11four\x00\x03abc\x00\x00"

// One list of fields writes a payload and reads it again.
func TestPayloadLayout(t *testing.T) {
	want := fields{1, true, false, 0x0203, 0x04050607, 0x08090a0b0c0d0e0f, 0x1011, [4]byte{'f', 'o', 'u', 'r'}, []byte("abc"), []byte{}}
	in := want
	var w Coder
	require.False(t, w.Reading())
	in.code(&w)
	require.Equal(t, want, in, "writing changes no field")
	payload, err := w.Payload()
	require.NoError(t, err)
	require.Equal(t, layout, string(payload))

	r := ReadFrom(payload)
	require.Equal(t, len(payload), r.Left())
	require.True(t, r.Reading())
	out := fields{a: 9, c: true, g: -1, h: [4]byte{1}, j: []byte("left over")}
	out.code(r)
	require.NoError(t, r.Err())
	require.NoError(t, r.Done())
	require.Equal(t, want, out)
	require.Zero(t, r.Left())
}

func TestWriterKeepsItsFirstError(t *testing.T) {
	var w Coder
	long, one, yes := make([]byte, 1<<16), uint8(1), true
	w.Counted(&long)
	w.Uint8(&one)
	_, err := w.Payload()
	require.ErrorIs(t, err, ErrTooBig)
	assert.Contains(t, err.Error(), "65536 bytes in one field")

	w = Coder{}
	w.Fixed(make([]byte, MaxPayload))
	_, err = w.Payload()
	require.NoError(t, err)
	w.Uint8(&one)
	w.Bool(&yes)
	require.True(t, yes)
	_, err = w.Payload()
	require.ErrorIs(t, err, ErrTooBig)
}

func TestReaderKeepsItsFirstError(t *testing.T) {
	r := ReadFrom([]byte{1, 2, 3})
	v := fields{e: 7}
	r.Uint16(&v.d)
	assert.Equal(t, uint16(0x0102), v.d)
	r.Uint32(&v.e)
	assert.Zero(t, v.e)
	first := r.Err()
	require.ErrorIs(t, first, ErrTruncated)
	v = fields{1, true, true, 1, 1, 1, 1, [4]byte{9, 9}, []byte("a"), []byte("b")}
	v.code(r)
	assert.Equal(t, fields{}, v)
	assert.Equal(t, first, r.Done())
}

func TestReaderRefuses(t *testing.T) {
	var v fields
	r := ReadFrom([]byte{2})
	r.Bool(&v.b)
	assert.False(t, v.b)
	require.ErrorIs(t, r.Done(), ErrFormat)

	r = ReadFrom([]byte{0, 3, 'a', 'b'})
	r.Counted(&v.i)
	assert.Nil(t, v.i)
	require.ErrorIs(t, r.Done(), ErrTruncated)

	r = ReadFrom([]byte{1, 2})
	r.Uint8(&v.a)
	require.NoError(t, r.Err())
	require.ErrorIs(t, r.Done(), ErrTrailing)
}

// FuzzReader reads fields in an order that the input chooses, and writes back
// what it has read: that gives the input again, or there was an error.
func FuzzReader(f *testing.F) {
	f.Add([]byte{0, 1, 1, 2, 3, 4, 2, 6, 7, 7}, []byte(layout))
	f.Fuzz(func(t *testing.T, order, payload []byte) {
		if len(payload) > MaxPayload {
			return
		}
		r := ReadFrom(payload)
		var w Coder
		for _, field := range order {
			var v fields
			for _, c := range []*Coder{r, &w} {
				switch field % 8 {
				case 0:
					c.Uint8(&v.a)
				case 1:
					c.Bool(&v.b)
				case 2:
					c.Uint16(&v.d)
				case 3:
					c.Uint32(&v.e)
				case 4:
					c.Uint64(&v.f)
				case 5:
					Int(c, &v.g, 3)
				case 6:
					c.Fixed(v.h[:])
				case 7:
					c.Counted(&v.i)
				}
				if r.Err() != nil {
					return
				}
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
