package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// pattern is the data of one connection, piece by piece. The bytes depend on the position, the
// size and the connection. All of them are odd, so that memory that was not written to is
// noticed.
type pattern struct {
	state uint64
	word  []byte // the rest of the last 8 bytes
	moved int    // bytes so far
	sum   uint32 // their CRC-32C
}

func newPattern(size, connection int) *pattern {
	return &pattern{state: 1<<63 | uint64(connection+1)<<40 | uint64(size)}
}

// next puts the next bytes into b.
func (p *pattern) next(b []byte) {
	n := copy(b, p.word)
	p.word = p.word[n:]
	var word [8]byte
	for b = b[n:]; len(b) > 0; b = b[n:] {
		// Marsaglia's xorshift with the shifts 13, 7, 17.
		p.state ^= p.state << 13
		p.state ^= p.state >> 7
		p.state ^= p.state << 17
		binary.LittleEndian.PutUint64(word[:], p.state|0x0101010101010101)
		if n = copy(b, word[:]); n < len(word) {
			p.word = bytes.Clone(word[n:])
		}
	}
}

// fill puts the next bytes into b, and counts them as moved.
func (p *pattern) fill(b []byte) {
	p.next(b)
	p.add(b)
}

// check checks that b has the next bytes, and counts them as moved.
func (p *pattern) check(b []byte) error {
	p.add(b)
	var buffer [4096]byte
	for off := 0; off < len(b); off += len(buffer) {
		got := b[off:min(off+len(buffer), len(b))]
		want := buffer[:len(got)]
		p.next(want)
		if bytes.Equal(got, want) {
			continue
		}
		for i := range want {
			if got[i] != want[i] {
				return fmt.Errorf("the data is wrong: byte %d is %#02x, not %#02x", p.moved-len(b)+off+i, got[i], want[i])
			}
		}
	}
	return nil
}

func (p *pattern) add(b []byte) {
	p.moved += len(b)
	p.sum = crc32.Update(p.sum, castagnoli, b)
}

// String describes the data moved so far.
func (p *pattern) String() string {
	return fmt.Sprintf("a pattern (%d bytes, CRC-32C %08x)", p.moved, p.sum)
}

// newPatterns returns the patterns of all connections.
func (e *end) newPatterns() []*pattern {
	list := make([]*pattern, e.connections)
	for i := range list {
		list[i] = newPattern(e.size, i)
	}
	return list
}

// word describes a value that was moved.
func word(v uint64) string {
	return fmt.Sprintf("%d (8 bytes, CRC-32C %08x)", v, crc32.Checksum(binary.BigEndian.AppendUint64(nil, v), castagnoli))
}
