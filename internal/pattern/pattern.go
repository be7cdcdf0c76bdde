// Package pattern makes data that both ends of a transfer know, and checks every byte of it.
// The data is a stream for each key; a byte follows from the key and its position alone, so
// pieces can be made and checked in any order.
package pattern

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
)

// Key returns the key of the stream that the words identify, such as one direction of a
// connection.
func Key(words ...any) uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprintln(h, words...)
	return h.Sum64()
}

// word returns the 8 bytes of a stream at a multiple of 8 (the finalizer of SplitMix64). All
// bytes are odd, so that memory that nothing was written to is noticed.
func word(key uint64, at int) uint64 {
	z := key*0x9e3779b97f4a7c15 + uint64(at)*0xd1342543de82ef95 + 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31 | 0x0101010101010101
}

// part returns the next bytes at a position, at most n, up to the end of its word.
func part(buffer *[8]byte, key uint64, at, n int) []byte {
	off := at % 8
	binary.LittleEndian.PutUint64(buffer[:], word(key, at-off))
	return buffer[off:min(off+n, 8)]
}

// Fill writes the bytes of a stream from a position on.
func Fill(b []byte, key uint64, at int) {
	var buffer [8]byte
	for len(b) > 0 {
		if at%8 == 0 && len(b) >= 8 {
			binary.LittleEndian.PutUint64(b, word(key, at))
			b, at = b[8:], at+8
			continue
		}
		n := copy(b, part(&buffer, key, at, len(b)))
		b, at = b[n:], at+n
	}
}

// First returns the index of the first byte of b that differs from the stream, or -1.
func First(b []byte, key uint64, at int) int {
	var buffer [8]byte
	for i := 0; i < len(b); {
		if (at+i)%8 == 0 && len(b)-i >= 8 && binary.LittleEndian.Uint64(b[i:]) == word(key, at+i) {
			i += 8
			continue
		}
		for _, want := range part(&buffer, key, at+i, len(b)-i) {
			if b[i] != want {
				return i
			}
			i++
		}
	}
	return -1
}

// Check compares every byte of b with the stream from a position on. The error counts the wrong
// bytes, and names the first and the last by their positions.
func Check(b []byte, key uint64, at int) error {
	first := First(b, key, at)
	if first < 0 {
		return nil
	}
	want := make([]byte, len(b))
	Fill(want, key, at)
	last, wrong := first, 0
	for i := first; i < len(b); i++ {
		if b[i] != want[i] {
			last = i
			wrong++
		}
	}
	return fmt.Errorf("the data is wrong: %d of %d bytes, from byte %d to %d; the first is %#02x, not %#02x",
		wrong, len(b), at+first, at+last, b[first], want[first])
}
