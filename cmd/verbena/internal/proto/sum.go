package proto

import "github.com/zeebo/xxh3"

// SumOf is the hash of a block.
func SumOf(b []byte) Sum { return xxh3.Hash128(b).Bytes() }

// Digest makes the hash of a file out of those of its blocks, in order. The zero value is
// that of no blocks.
type Digest struct{ h *xxh3.Hasher }

// Add adds the next block.
func (d *Digest) Add(s Sum) {
	if d.h == nil {
		d.h = xxh3.New()
	}
	_, _ = d.h.Write(s[:]) // never fails
}

// Sum is the hash of the blocks so far.
func (d *Digest) Sum() Sum {
	if d.h == nil {
		return xxh3.Hash128(nil).Bytes()
	}
	return d.h.Sum128().Bytes()
}
