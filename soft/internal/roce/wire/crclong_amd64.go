package wire

import (
	"hash/crc32"

	"golang.org/x/sys/cpu"
)

// hasLong reports whether the processor has a vector instruction that multiplies four pairs of
// 64-bit values without carries. With it the CRC is four times as fast as with hash/crc32.
var hasLong = cpu.X86.HasAVX512F && cpu.X86.HasAVX512VPCLMULQDQ

// longBlock is how many bytes one step of foldBlocks takes.
const longBlock = 256

// foldConstants are the multipliers that move 16 bytes of a message forward by a distance, one
// for each half. The product has the same effect on the CRC at the later place, where it is
// added to the bytes there (Gopal et al., "Fast CRC Computation for Generic Polynomials Using
// PCLMULQDQ Instruction", Intel, 2009).
type foldConstants struct {
	block, vector [2]uint64    // over 256 and 64 bytes
	lanes         [4][2]uint64 // over 48, 32 and 16 bytes; the last lane is not moved
}

var folds = foldConstants{
	block: foldOver(256), vector: foldOver(64),
	lanes: [4][2]uint64{foldOver(48), foldOver(32), foldOver(16)},
}

// foldOver returns the constants for a distance in bytes.
func foldOver(distance int) [2]uint64 {
	power := func(bits int) uint64 { // x to the power of bits, with x^0 in the uppermost bit of 33
		r := uint32(1 << 31)
		for range bits {
			r = r>>1 ^ -(r&1)&crc32.IEEE
		}
		return uint64(r) << 1
	}
	return [2]uint64{power(8*distance + 32), power(8*distance - 32)}
}

// crcLong feeds all whole blocks of p, at least one, and returns the rest.
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
