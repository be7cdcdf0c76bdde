package admission

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"time"
)

// bucket is a token bucket, as a generic cell rate algorithm (ITU-T I.371 annex A), which
// stores one time.
type bucket struct {
	full time.Duration // when the bucket will be full again; in the past: it is full
}

func (b *bucket) has(now time.Duration, burst int, interval time.Duration) bool {
	return b.full-now <= time.Duration(burst-1)*interval
}

func (b *bucket) take(now, interval time.Duration) { b.full = max(b.full, now) + interval }

// hostBuckets are the buckets of other hosts. A secret hash assigns hosts to a fixed number of
// buckets, so that forged addresses take no memory and cannot target the bucket of another
// host.
type hostBuckets struct {
	secret  [4]uint64
	buckets [1024]bucket
}

func newHostBuckets(random func() uint32) (h hostBuckets) {
	for i := range h.secret {
		h.secret[i] = uint64(random())<<32 | uint64(random())
	}
	return h
}

// of returns the bucket of a host. The key is the IPv4 address, or the upper half of the IPv6
// address, since a host has many lower halves. For link-local addresses, which share the upper
// half, it is the lower half.
func (h *hostBuckets) of(host netip.Addr) *bucket {
	var key uint64
	switch {
	case host.Is4():
		b := host.As4()
		key = uint64(binary.BigEndian.Uint32(b[:]))
	case host.IsLinkLocalUnicast():
		b := host.As16()
		key = binary.BigEndian.Uint64(b[8:])
	default:
		b := host.As16()
		key = binary.BigEndian.Uint64(b[:])
	}
	// Not hash/maphash, whose seed cannot be chosen.
	hash := fold(fold(key^h.secret[0], h.secret[1])^h.secret[2], h.secret[3])
	return &h.buckets[hash%uint64(len(h.buckets))]
}

// fold mixes the halves of a product.
func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}
