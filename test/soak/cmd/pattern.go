package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
)

// key returns the key of the data that the words identify, such as one direction of a
// connection.
func key(seed uint64, words ...any) uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprintln(h, append([]any{seed}, words...)...)
	return h.Sum64()
}

// pattern generates data that both ends know. It depends on the key and on the number of the
// piece.
type pattern struct {
	source rand.PCG
	want   []byte
}

// fill writes a piece to b.
func (p *pattern) fill(b []byte, key, piece uint64) {
	p.source.Seed(key, piece)
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, p.source.Uint64())
	}
	if len(b) > 0 {
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], p.source.Uint64())
		copy(b, word[:])
	}
}

// check compares every byte of b with a piece.
func (p *pattern) check(b []byte, key, piece uint64) error {
	if cap(p.want) < len(b) {
		p.want = make([]byte, max(len(b), 2*cap(p.want)))
	}
	want := p.want[:len(b)]
	p.fill(want, key, piece)
	return same(b, want)
}

// same compares every byte.
func same(got, want []byte) error {
	if bytes.Equal(got, want) {
		return nil
	}
	if len(got) != len(want) {
		return fmt.Errorf("the data is wrong: received %d bytes, want %d", len(got), len(want))
	}
	first, last, wrong := -1, 0, 0
	for i := range want {
		if got[i] != want[i] {
			if first < 0 {
				first = i
			}
			last = i
			wrong++
		}
	}
	return fmt.Errorf("the data is wrong: %d of %d bytes, from byte %d to %d; the first is %#02x, not %#02x",
		wrong, len(want), first, last, got[first], want[first])
}
