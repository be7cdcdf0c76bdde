// Package wirecode encodes and decodes the payloads of descriptors: big-endian fields of fixed
// width, and counted bytes. Package descriptor adds the header and the checksum.
package wirecode

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// MaxPayload is the largest number of bytes in one payload.
const MaxPayload = 32 << 10

// Errors of this package, matched with errors.Is. Package descriptor aliases them.
var (
	// ErrTruncated: the end of the descriptor is missing.
	ErrTruncated = errors.New("descriptor is cut short")
	// ErrTrailing: bytes or text follow the end of the descriptor.
	ErrTrailing = errors.New("descriptor is followed by something else")
	// ErrFormat: the bytes are not a descriptor, or have values that no exporter writes.
	ErrFormat = errors.New("not a descriptor")
	// ErrTooBig: the payload is larger than MaxPayload, or the descriptor is larger than
	// descriptor.MaxFile.
	ErrTooBig = errors.New("descriptor is too big")
)

// Coder codes fields, one after the other, in one direction: the zero value writes them to a
// payload, and the Coder of ReadFrom reads them from one. A message that passes its fields to a
// Coder has one list of them for both directions. After an error a Coder writes nothing more, and
// sets what it reads to zero; Payload and Done return the error. A Coder belongs to one goroutine
// at a time.
type Coder struct {
	b       []byte
	off     int // of the next field
	reading bool
	err     error
}

// ReadFrom returns a Coder that reads a payload. Counted returns parts of it.
func ReadFrom(payload []byte) *Coder { return &Coder{b: payload, reading: true} }

// Reading reports whether the Coder reads.
func (c *Coder) Reading() bool { return c.reading }

// field returns the next n bytes of the payload, or nil after an error.
func (c *Coder) field(n int) []byte {
	switch left := len(c.b) - c.off; {
	case c.err != nil:
	case c.reading && n > left:
		c.err = fmt.Errorf("read descriptor: %w: a field of %d bytes at byte %d of its payload, which ends at %d; export it again",
			ErrTruncated, n, c.off, len(c.b))
	case !c.reading && n > MaxPayload-len(c.b):
		c.err = fmt.Errorf("write descriptor: %w: %d bytes of payload, at most %d fit",
			ErrTooBig, len(c.b)+n, MaxPayload)
	case !c.reading:
		c.b = append(c.b, make([]byte, n)...)
	}
	if c.err != nil {
		return nil
	}
	c.off += n
	return c.b[c.off-n : c.off : c.off]
}

// Integer is an integer of any type.
type Integer interface {
	~int | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

// Int codes the lowest bytes of an integer, 1 to 8 of them.
func Int[T Integer](c *Coder, v *T, bytes int) {
	var b [8]byte
	if !c.reading {
		binary.BigEndian.PutUint64(b[:], uint64(*v))
	}
	if c.Fixed(b[8-bytes:]); c.reading {
		*v = T(binary.BigEndian.Uint64(b[:]))
	}
}

// Uint8 codes one byte.
func (c *Coder) Uint8(v *uint8) { Int(c, v, 1) }

// Uint16 codes two bytes.
func (c *Coder) Uint16(v *uint16) { Int(c, v, 2) }

// Uint32 codes four bytes.
func (c *Coder) Uint32(v *uint32) { Int(c, v, 4) }

// Uint64 codes eight bytes.
func (c *Coder) Uint64(v *uint64) { Int(c, v, 8) }

// Bool codes one byte, 1 or 0. To read anything else is an error that matches ErrFormat.
func (c *Coder) Bool(v *bool) {
	var b uint8
	if *v {
		b = 1
	}
	c.Uint8(&b)
	if b > 1 {
		c.err = fmt.Errorf("read descriptor: %w: byte %d of its payload is %d; it must be 0 or 1; export it again",
			ErrFormat, c.off-1, b)
	}
	if c.reading {
		*v = b == 1
	}
}

// Fixed codes the bytes of b, whose number both ends know.
func (c *Coder) Fixed(b []byte) {
	field := c.field(len(b))
	if c.reading {
		clear(b)
		copy(b, field)
	} else {
		copy(field, b)
	}
}

// Counted codes a count of two bytes and then the bytes, at most 65535. A Coder that reads makes no
// copy of them.
func (c *Coder) Counted(v *[]byte) {
	if !c.reading && c.err == nil && len(*v) > math.MaxUint16 {
		c.err = fmt.Errorf("write descriptor: %w: %d bytes in one field, at most %d fit",
			ErrTooBig, len(*v), math.MaxUint16)
	}
	n := len(*v)
	if Int(c, &n, 2); c.reading {
		*v = c.field(n)
	} else {
		c.Fixed(*v)
	}
}

// Payload returns the fields written, or the first error.
func (c *Coder) Payload() ([]byte, error) {
	if c.err != nil {
		return nil, c.err
	}
	return c.b, nil
}

// Left returns how many bytes are left to read.
func (c *Coder) Left() int { return len(c.b) - c.off }

// Err returns the first error.
func (c *Coder) Err() error { return c.err }

// Done returns the first error of a Coder that reads. If there is none and bytes are left over, it
// returns an error that matches ErrTrailing.
func (c *Coder) Done() error {
	if c.err == nil && c.Left() > 0 {
		c.err = fmt.Errorf("read descriptor: %w: its payload has %d bytes, and its fields end at %d; run the same release of Verbena on both ends",
			ErrTrailing, len(c.b), c.off)
	}
	return c.err
}
