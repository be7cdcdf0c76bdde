package proto

import "github.com/zeebo/xxh3"

// SumOf returns the hash of data.
func SumOf(b []byte) Sum { return xxh3.Hash128(b).Bytes() }

// Digest computes the hash of data that arrives in pieces. The zero value is the digest of no
// data.
type Digest struct{ h *xxh3.Hasher }

// Add adds the next piece.
func (d *Digest) Add(b []byte) {
	if d.h == nil {
		d.h = xxh3.New()
	}
	_, _ = d.h.Write(b) // never fails
}

// Sum returns the hash of the data so far.
func (d *Digest) Sum() Sum {
	if d.h == nil {
		return SumOf(nil)
	}
	return d.h.Sum128().Bytes()
}
