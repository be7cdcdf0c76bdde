package wire

import (
	"hash/crc32"

	"golang.org/x/sys/cpu"
)

// hasLong: the processor multiplies four pairs of 64 bits without carries at a time. That is four
// times as fast as what hash/crc32 uses.
var hasLong = cpu.X86.HasAVX512F && cpu.X86.HasAVX512VPCLMULQDQ

// longBlock is what is taken at a time.
const longBlock = 256

// foldConstants are what 16 bytes of a message are multiplied with, each half by its own, to be
// worth the same further on, where they can be added to what is there (Gopal et al., "Fast CRC
// Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel, 2009).
type foldConstants struct {
	block, vector [2]uint64    // over 256 and 64 bytes
	lanes         [4][2]uint64 // over 48, 32 and 16 bytes; the last stays as it is
}

var folds = foldConstants{
	block: foldOver(256), vector: foldOver(64),
	lanes: [4][2]uint64{foldOver(48), foldOver(32), foldOver(16)},
}

// foldOver are the constants for a distance in bytes.
func foldOver(distance int) [2]uint64 {
	power := func(bits int) uint64 { // x to that, with x^0 in the uppermost bit of 33
		r := uint32(1 << 31)
		for range bits {
			r = r>>1 ^ -(r&1)&crc32.IEEE
		}
		return uint64(r) << 1
	}
	return [2]uint64{power(8*distance + 32), power(8*distance - 32)}
}

// crcLong feeds all whole blocks, of which there has to be one, and returns the rest.
func crcLong(r uint32, p []byte) (uint32, []byte) {
	n := len(p) &^ (longBlock - 1)
	var folded [16]byte
	foldBlocks(&folded, &folds, r, &p[0], n)
	return crcShort(0, folded[:]), p[n:]
}

// foldBlocks writes 16 bytes that have the CRC, from a register of zero, of n bytes from r. n is a
// multiple of longBlock, and not zero.
//
//go:noescape
func foldBlocks(out *[16]byte, k *foldConstants, r uint32, p *byte, n int)
