// Package mt19937 has the 64-bit Mersenne Twister. For the same seed it returns the same
// numbers as std::mt19937_64 of C++ (ISO/IEC 14882, rand.predef; M. Matsumoto and T.
// Nishimura, "Mersenne Twister", ACM TOMACS 8(1), 1998; T. Nishimura, "Tables of 64-bit
// Mersenne twisters", ACM TOMACS 10(4), 2000).
package mt19937

import "encoding/binary"

// The parameters of mt19937_64.
const (
	words      = 312 // n
	shift      = 156 // m
	upper      = 0xffffffff80000000
	twist      = 0xb5026f5aa96619e9
	multiplier = 6364136223846793005
)

// Source generates numbers. It is for one goroutine.
type Source struct {
	state [words]uint64
	next  int
}

// New returns a source with a seed.
func New(seed uint64) *Source {
	s := &Source{next: words}
	s.state[0] = seed
	for i := 1; i < words; i++ {
		before := s.state[i-1]
		s.state[i] = multiplier*(before^before>>62) + uint64(i)
	}
	return s
}

// Uint64 returns the next number.
func (s *Source) Uint64() uint64 {
	if s.next == words {
		s.generate()
	}
	x := s.state[s.next]
	s.next++
	x ^= x >> 29 & 0x5555555555555555
	x ^= x << 17 & 0x71d67fffeda60000
	x ^= x << 37 & 0xfff7eee000000000
	return x ^ x>>43
}

func (s *Source) generate() {
	for i := range s.state {
		x := s.state[i]&upper | s.state[(i+1)%words]&^upper
		v := s.state[(i+shift)%words] ^ x>>1
		if x&1 != 0 {
			v ^= twist
		}
		s.state[i] = v
	}
	s.next = 0
}

// Fill fills memory with numbers, 8 bytes each, little-endian. The last number may be cut off.
func (s *Source) Fill(p []byte) {
	for len(p) >= 8 {
		binary.LittleEndian.PutUint64(p, s.Uint64())
		p = p[8:]
	}
	if len(p) > 0 {
		var last [8]byte
		binary.LittleEndian.PutUint64(last[:], s.Uint64())
		copy(p, last[:])
	}
}
