package proto

import (
	"encoding/binary"
	"fmt"
	"time"
	"unicode/utf8"
)

// Encode encodes a message. It fails with ErrTooBig if the result would be longer than
// MaxMessage, or if a part of the message exceeds its limit.
func Encode(m Message) ([]byte, error) {
	w := writer{b: make([]byte, 1, 256)}
	w.b[0] = byte(m.kind())
	m.encode(&w)
	if w.excess == "" && len(w.b) > MaxMessage {
		w.excess = fmt.Sprintf("%d bytes", len(w.b))
	}
	if w.excess != "" {
		return nil, fmt.Errorf("%w: %T: %s", ErrTooBig, m, w.excess)
	}
	return w.b, nil
}

// Decode decodes a message. The result shares no memory with b. The error matches
// ErrMalformed.
func Decode(b []byte) (Message, error) {
	if len(b) == 0 || len(b) > MaxMessage {
		return nil, fmt.Errorf("%w: %d bytes", ErrMalformed, len(b))
	}
	m := empty(kind(b[0]))
	if m == nil {
		return nil, fmt.Errorf("%w: kind %d", ErrMalformed, b[0])
	}
	r := reader{b: b[1:]}
	m.decode(&r)
	if r.wrong == "" && len(r.b) > 0 {
		r.fail("%d bytes too many", len(r.b))
	}
	if r.wrong != "" {
		return nil, fmt.Errorf("%w: %T: %s", ErrMalformed, m, r.wrong)
	}
	return m, nil
}

// IsPing reports whether b is an encoded Ping.
func IsPing(b []byte) bool { return len(b) == 1 && kind(b[0]) == kindPing }

// Cut shortens a text to at most n bytes, without splitting a character.
func Cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// writer appends encoded values. It keeps the first excess over a limit.
type writer struct {
	b      []byte
	excess string
}

func (w *writer) u8(v uint8)    { w.b = append(w.b, v) }
func (w *writer) u16(v uint16)  { w.b = binary.BigEndian.AppendUint16(w.b, v) }
func (w *writer) u32(v uint32)  { w.b = binary.BigEndian.AppendUint32(w.b, v) }
func (w *writer) u64(v uint64)  { w.b = binary.BigEndian.AppendUint64(w.b, v) }
func (w *writer) raw(s string)  { w.b = append(w.b, s...) }
func (w *writer) sum(s Sum)     { w.b = append(w.b, s[:]...) }
func (w *writer) token(t Token) { w.b = append(w.b, t[:]...) }

func (w *writer) bool(v bool) {
	if v {
		w.u8(1)
	} else {
		w.u8(0)
	}
}

func (w *writer) text(s string, limit int) {
	if len(s) > limit && w.excess == "" {
		w.excess = fmt.Sprintf("a text of %d bytes, longer than the limit of %d", len(s), limit)
	}
	w.u16(uint16(len(s)))
	w.raw(s)
}

func (w *writer) count(n, limit int) {
	if (n < 1 || n > limit) && w.excess == "" {
		w.excess = fmt.Sprintf("%d elements, want 1 to %d", n, limit)
	}
	w.u16(uint16(n))
}

func (w *writer) time(t time.Time) {
	w.u64(uint64(t.Unix()))
	w.u32(uint32(t.Nanosecond()))
}

// reader decodes values from the front of b. It keeps the first error, and returns zeros after
// it.
type reader struct {
	b     []byte
	wrong string
}

func (r *reader) fail(format string, args ...any) {
	if r.wrong == "" {
		r.wrong = fmt.Sprintf(format, args...)
	}
	r.b = nil
}

var zeros [32]byte

// raw returns the next n bytes, at most 32.
func (r *reader) raw(n int) []byte {
	if len(r.b) < n {
		r.fail("truncated")
		return zeros[:n]
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) u8() uint8    { return r.raw(1)[0] }
func (r *reader) u16() uint16  { return binary.BigEndian.Uint16(r.raw(2)) }
func (r *reader) u32() uint32  { return binary.BigEndian.Uint32(r.raw(4)) }
func (r *reader) u64() uint64  { return binary.BigEndian.Uint64(r.raw(8)) }
func (r *reader) sum() Sum     { return Sum(r.raw(SumSize)) }
func (r *reader) token() Token { return Token(r.raw(len(Token{}))) }

func (r *reader) expect(s string) {
	if string(r.raw(len(s))) != s {
		r.fail("another protocol")
	}
}

func (r *reader) bool() bool {
	v := r.u8()
	if v > 1 {
		r.fail("a boolean with the value %d", v)
	}
	return v == 1
}

func (r *reader) text(limit int) string {
	n := int(r.u16())
	switch {
	case n > limit:
		r.fail("a text of %d bytes, longer than the limit of %d", n, limit)
	case n > len(r.b):
		r.fail("truncated")
	default:
		s := string(r.b[:n])
		r.b = r.b[n:]
		return s
	}
	return ""
}

func (r *reader) utf8(limit int) string {
	s := r.text(limit)
	if !utf8.ValidString(s) {
		r.fail("a text that is not UTF-8")
		return ""
	}
	return s
}

// count reads the number of elements of a list, each of at least size bytes.
func (r *reader) count(limit, size int) int {
	n := int(r.u16())
	switch {
	case n < 1 || n > limit:
		r.fail("%d elements, want 1 to %d", n, limit)
	case n*size > len(r.b):
		r.fail("truncated")
	default:
		return n
	}
	return 0
}

func (r *reader) slot() uint16 {
	s := r.u16()
	if s >= MaxSlots {
		r.fail("slot %d", s)
	}
	return s
}

func (r *reader) mode() uint16 {
	m := r.u16()
	if m > 0o777 {
		r.fail("mode %#o", m)
	}
	return m
}

// maxSeconds bounds times to years that every system can represent, about -999 to 9999.
const maxSeconds = 1 << 38

func (r *reader) time() time.Time {
	sec, nsec := int64(r.u64()), r.u32()
	if sec < -maxSeconds || sec > maxSeconds || nsec > 999_999_999 {
		r.fail("time %d.%d", sec, nsec)
		return time.Time{}
	}
	return time.Unix(sec, int64(nsec))
}

func (r *reader) code() Code {
	c := Code(r.u8())
	if c >= codes {
		r.fail("code %d", c)
	}
	return c
}

func (r *reader) failure() Code {
	c := r.code()
	if c == OK && r.wrong == "" {
		r.fail("a failure without a code")
	}
	return c
}
