package sample

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"unicode/utf8"
)

// Sizes of what is moved, in bytes.
const (
	minPattern = 16
	MaxSize    = 1 << 30
	// Room is what a program that takes a text has room for.
	Room = 4096
)

// patternMagic begins a pattern. It is no UTF-8, so that no text begins with it.
var patternMagic = [8]byte{0xff, 'V', 'e', 'r', 'b', 'e', 'n', 'a'}

// Payload returns what the program is to provide: its text or, with -size, a
// pattern that can be recognised and checked on the far side. It is empty with
// -size 0 only.
func (s *Session) Payload() []byte {
	if !s.sized {
		return []byte(s.text)
	}
	b := make([]byte, s.size)
	fillPattern(b)
	return b
}

// Capacity is how many bytes the program is to have room for.
func (s *Session) Capacity() int {
	if !s.sized {
		return Room
	}
	return s.size
}

// fillPattern makes b a pattern: the magic, the length, and bytes that differ
// from one place to the next and with the length. Fewer bytes than the magic and
// the length need are letters, which are text on the far side.
func fillPattern(b []byte) {
	if len(b) < minPattern {
		copy(b, "abcdefghijklmno")
		return
	}
	copy(b, patternMagic[:])
	binary.BigEndian.PutUint64(b[8:], uint64(len(b)))
	x := uint64(len(b)) | 1<<63
	var word [8]byte
	for i := minPattern; i < len(b); i += len(word) {
		// Marsaglia's xorshift with 13, 7, 17.
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		binary.LittleEndian.PutUint64(word[:], x)
		copy(b[i:], word[:])
	}
}

// Verify returns what a peer has provided at the beginning of mem, which may be
// larger: a pattern, every byte of which is checked, or text up to the first
// zero byte. With -size 0 no data is right.
func (s *Session) Verify(mem []byte) ([]byte, error) {
	if len(mem) == 0 && s.sized && s.size == 0 {
		return mem, nil
	}
	return Verify(mem)
}

// Verify returns the text at the beginning of mem, up to the first zero byte, or what is
// wrong with it.
func Verify(mem []byte) ([]byte, error) {
	if bytes.HasPrefix(mem, patternMagic[:]) {
		return verifyPattern(mem)
	}
	text := mem
	if i := bytes.IndexByte(mem, 0); i >= 0 {
		text = mem[:i]
	}
	switch {
	case len(text) == 0:
		return nil, errors.New("no data has arrived")
	case !utf8.Valid(text):
		return nil, fmt.Errorf("the data is wrong: its %d bytes are neither text nor a pattern", len(text))
	}
	return text, nil
}

func verifyPattern(mem []byte) ([]byte, error) {
	if len(mem) < minPattern {
		return nil, fmt.Errorf("the data is wrong: a pattern of only %d bytes", len(mem))
	}
	n := binary.BigEndian.Uint64(mem[8:])
	if n < minPattern || n > uint64(len(mem)) {
		return nil, fmt.Errorf("the data is wrong: a pattern that claims %d bytes, in %d", n, len(mem))
	}
	got, want := mem[:n], make([]byte, n)
	fillPattern(want)
	for i := range want {
		if got[i] != want[i] {
			return nil, fmt.Errorf("the data is wrong: byte %d of %d is %#02x, not %#02x", i, n, got[i], want[i])
		}
	}
	return got, nil
}

// Show checks that mem begins with text, and prints that: %s of the format, with more
// behind it for the rest.
func (s *Session) Show(mem []byte, format string, more ...any) error {
	text, err := Verify(mem)
	if err == nil {
		s.Print(format, append([]any{Describe(text)}, more...)...)
	}
	return err
}

// Describe says in one line what the data is, with its length and its checksum.
func Describe(data []byte) string {
	sum := crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))
	if bytes.HasPrefix(data, patternMagic[:]) {
		return fmt.Sprintf("a pattern (%d bytes, CRC-32C %08x)", len(data), sum)
	}
	return fmt.Sprintf("%q (%d bytes, CRC-32C %08x)", data, len(data), sum)
}

// Word describes the value of an atomic.
func Word(v uint64) string {
	sum := crc32.Checksum(binary.BigEndian.AppendUint64(nil, v), crc32.MakeTable(crc32.Castagnoli))
	return fmt.Sprintf("%d (8 bytes, CRC-32C %08x)", v, sum)
}
