package wire

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"
)

// The register of the CRC is a polynomial over GF(2) of degree below 32, stored
// with the coefficient of x^0 in bit 31 (the "reflected" order of CRC-32/IEEE).
// Feeding a zero byte multiplies it by x^8 modulo the CRC's polynomial.

// slicing[k][b] is the register b after k+1 zero bytes.
var slicing = makeSlicing()

func makeSlicing() (t [8][256]uint32) {
	t[0] = *crc32.IEEETable
	for k := 1; k < len(t); k++ {
		for b, r := range t[k-1] {
			t[k][b] = r>>8 ^ t[0][uint8(r)]
		}
	}
	return t
}

// crcWord feeds 4 bytes.
func crcWord(r, little uint32) uint32 {
	r ^= little
	return slicing[3][uint8(r)] ^ slicing[2][uint8(r>>8)] ^ slicing[1][uint8(r>>16)] ^ slicing[0][r>>24]
}

// crcDouble feeds 8 bytes.
func crcDouble(r uint32, little uint64) uint32 {
	little ^= uint64(r)
	return slicing[7][uint8(little)] ^ slicing[6][uint8(little>>8)] ^
		slicing[5][uint8(little>>16)] ^ slicing[4][uint8(little>>24)] ^
		slicing[3][uint8(little>>32)] ^ slicing[2][uint8(little>>40)] ^
		slicing[1][uint8(little>>48)] ^ slicing[0][uint8(little>>56)]
}

// crcShort feeds a few bytes faster than hash/crc32 does, which needs 64 of them
// for its vector instructions.
func crcShort(r uint32, p []byte) uint32 {
	for len(p) >= 8 {
		r = crcDouble(r, binary.LittleEndian.Uint64(p))
		p = p[8:]
	}
	if len(p) >= 4 {
		r = crcWord(r, binary.LittleEndian.Uint32(p))
		p = p[4:]
	}
	for _, b := range p {
		r = r>>8 ^ slicing[0][uint8(r)^b]
	}
	return r
}

// rewindBit undoes the feeding of one zero bit: it divides by x.
func rewindBit(r uint32) uint32 {
	if r>>31 != 0 {
		return (r^crc32.IEEE)<<1 | 1
	}
	return r << 1
}

// multiply is the product of two registers modulo the CRC's polynomial.
func multiply(a, b uint32) uint32 {
	// Bit i of a times bit j of b is x^(62-i-j): one shift puts x^0 into bit 63.
	product := clmul(a, b) << 1
	return uint32(product>>32) ^ crcWord(0, uint32(product))
}

// clmul multiplies without carries. Integer products of operands with three zero
// bits between any two others sum at most eight ones in a place, which fits into
// the gap before the next place that matters.
func clmul(a, b uint32) uint64 {
	const m0, m1, m2, m3 = 0x11111111, 0x22222222, 0x44444444, 0x88888888
	a0, a1, a2, a3 := uint64(a&m0), uint64(a&m1), uint64(a&m2), uint64(a&m3)
	b0, b1, b2, b3 := uint64(b&m0), uint64(b&m1), uint64(b&m2), uint64(b&m3)
	z0 := a0*b0 ^ a1*b3 ^ a2*b2 ^ a3*b1
	z1 := a0*b1 ^ a1*b0 ^ a2*b3 ^ a3*b2
	z2 := a0*b2 ^ a1*b1 ^ a2*b0 ^ a3*b3
	z3 := a0*b3 ^ a1*b2 ^ a2*b1 ^ a3*b0
	const wide = 1<<32 | 1
	return z0&(m0*wide) | z1&(m1*wide) | z2&(m2*wide) | z3&(m3*wide)
}

// field16 maps a 16-bit field of a header, in network byte order, to what it
// adds to the register at the end of that header.
type field16 [2][256]uint32

// makeField16 makes the map for a field that is followed by n more bytes.
func makeField16(n int) *field16 {
	var f field16
	for i := range f {
		for b := range f[i] {
			r := slicing[0][b]
			for range n + 1 - i {
				r = r>>8 ^ slicing[0][uint8(r)]
			}
			f[i][b] = r
		}
	}
	return &f
}

func (f *field16) of(v uint16) uint32 { return f[0][v>>8] ^ f[1][uint8(v)] }

// unfield16 returns the field whose two bytes, added to a register of zero, give r before the
// register is advanced over them. ok is false if there is none.
func unfield16(r uint32) (v uint16, ok bool) {
	return bits.ReverseBytes16(uint16(r)), r>>16 == 0
}
