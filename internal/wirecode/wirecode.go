// Package wirecode encodes and decodes the payloads of descriptors: big-endian fields of fixed
// width, and counted bytes. Package descriptor adds the header and the checksum.
//
// A Writer or Reader belongs to one goroutine at a time.
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

// Writer encodes a payload, field by field. The zero value is ready for use. After an error it
// writes nothing more; Payload returns the error.
type Writer struct {
	b   []byte
	err error
}

// Uint8 writes one byte.
func (w *Writer) Uint8(v uint8) { w.Fixed([]byte{v}) }

// Bool writes one byte, 1 or 0.
func (w *Writer) Bool(v bool) {
	if v {
		w.Uint8(1)
	} else {
		w.Uint8(0)
	}
}

// Uint16 writes two bytes.
func (w *Writer) Uint16(v uint16) { w.Fixed(binary.BigEndian.AppendUint16(nil, v)) }

// Uint32 writes four bytes.
func (w *Writer) Uint32(v uint32) { w.Fixed(binary.BigEndian.AppendUint32(nil, v)) }

// Uint64 writes eight bytes.
func (w *Writer) Uint64(v uint64) { w.Fixed(binary.BigEndian.AppendUint64(nil, v)) }

// Fixed writes the bytes as they are, for a field whose width both ends know.
func (w *Writer) Fixed(b []byte) {
	if w.err != nil {
		return
	}
	if len(b) > MaxPayload-len(w.b) {
		w.err = fmt.Errorf("write descriptor: %w: %d bytes of payload, at most %d fit",
			ErrTooBig, len(w.b)+len(b), MaxPayload)
		return
	}
	w.b = append(w.b, b...)
}

// Counted writes a count of two bytes and then the bytes, at most 65535.
func (w *Writer) Counted(b []byte) {
	if w.err == nil && len(b) > math.MaxUint16 {
		w.err = fmt.Errorf("write descriptor: %w: %d bytes in one field, at most %d fit",
			ErrTooBig, len(b), math.MaxUint16)
	}
	w.Uint16(uint16(len(b)))
	w.Fixed(b)
}

// Payload returns the fields written, or the first error.
func (w *Writer) Payload() ([]byte, error) {
	if w.err != nil {
		return nil, w.err
	}
	return w.b, nil
}

// Reader decodes a payload, field by field as a Writer wrote it. After an error it returns
// zeroes; Done returns the error.
type Reader struct {
	b   []byte
	off int
	err error
}

// NewReader returns a Reader of a payload. Counted returns parts of it.
func NewReader(payload []byte) *Reader { return &Reader{b: payload} }

func (r *Reader) take(n int) []byte {
	if r.err != nil {
		return nil
	}
	if left := len(r.b) - r.off; n > left {
		r.err = fmt.Errorf("read descriptor: %w: a field of %d bytes at byte %d of its payload, which ends at %d; export it again",
			ErrTruncated, n, r.off, len(r.b))
		return nil
	}
	b := r.b[r.off : r.off+n : r.off+n]
	r.off += n
	return b
}

// Uint8 reads one byte.
func (r *Reader) Uint8() uint8 {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

// Bool reads one byte. Anything but 0 and 1 is an error that matches ErrFormat.
func (r *Reader) Bool() bool {
	v := r.Uint8()
	if v > 1 && r.err == nil {
		r.err = fmt.Errorf("read descriptor: %w: byte %d of its payload is %d; it must be 0 or 1; export it again",
			ErrFormat, r.off-1, v)
	}
	return v == 1
}

// Uint16 reads two bytes.
func (r *Reader) Uint16() uint16 {
	if b := r.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

// Uint32 reads four bytes.
func (r *Reader) Uint32() uint32 {
	if b := r.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

// Uint64 reads eight bytes.
func (r *Reader) Uint64() uint64 {
	if b := r.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// Fixed fills dst with the next bytes, or with zeroes after an error.
func (r *Reader) Fixed(dst []byte) {
	b := r.take(len(dst))
	clear(dst)
	copy(dst, b)
}

// Counted reads a count of two bytes and returns that many bytes: a part of the payload, not a
// copy.
func (r *Reader) Counted() []byte { return r.take(int(r.Uint16())) }

// Left returns how many bytes are left to read.
func (r *Reader) Left() int { return len(r.b) - r.off }

// Err returns the first error.
func (r *Reader) Err() error { return r.err }

// Done returns the first error. If there is none and bytes are left over, it returns an error
// that matches ErrTrailing.
func (r *Reader) Done() error {
	if r.err == nil && r.off < len(r.b) {
		r.err = fmt.Errorf("read descriptor: %w: its payload has %d bytes, and its fields end at %d; run the same release of Verbena on both ends",
			ErrTrailing, len(r.b), r.off)
	}
	return r.err
}
