package wire

import (
	"hash/crc32"
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

func TestCRCShortAgreesWithLibrary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rapid.Uint32().Draw(t, "register")
		p := rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "bytes")
		assert.Equal(t, ^crc32.Update(^r, crc32.IEEETable, p), crcShort(r, p))
	})
}

// The bytes of a packet give the same by every way that they may take, from any place in memory.
func TestICRCUpdateAgreesWithLibrary(t *testing.T) {
	memory := make([]byte, 10_000)
	for i := range memory {
		memory[i] = byte(i*i>>3 ^ i)
	}
	for n := range 3*longBlock + 70 {
		p := memory[n%67:][:n]
		assert.Equal(t, ^crc32.Update(^uint32(n), crc32.IEEETable, p), ICRCUpdate(uint32(n), p), "%d bytes", n)
	}
	rapid.Check(t, func(t *rapid.T) {
		r := rapid.Uint32().Draw(t, "register")
		p := rapid.SliceOfN(rapid.Byte(), 0, 1200).Draw(t, "bytes")
		p = append(p, memory[rapid.IntRange(0, len(memory)).Draw(t, "more"):]...)
		assert.Equal(t, ^crc32.Update(^r, crc32.IEEETable, p), ICRCUpdate(r, p))
	})
}

func TestRewindBitUndoesAZeroBit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rapid.Uint32().Draw(t, "register")
		forward := r >> 1
		if r&1 != 0 {
			forward ^= crc32.IEEE
		}
		assert.Equal(t, r, rewindBit(forward))
	})
}

func TestMultiply(t *testing.T) {
	// Schoolbook: add b times x^i for every coefficient of a.
	slow := func(a, b uint32) (product uint32) {
		for i := range 32 {
			if a<<i>>31 != 0 {
				product ^= b
			}
			b = b>>1 ^ b&1*crc32.IEEE
		}
		return product
	}
	assert.Equal(t, slow(0xffffffff, 0xffffffff), multiply(0xffffffff, 0xffffffff))
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.Uint32().Draw(t, "a"), rapid.Uint32().Draw(t, "b")
		assert.Equal(t, slow(a, b), multiply(a, b))
	})
}

func TestField16(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Uint16().Draw(t, "field")
		n := rapid.IntRange(0, 60).Draw(t, "bytes behind it")
		b := make([]byte, 2+n)
		b[0], b[1] = byte(v>>8), byte(v)
		assert.Equal(t, crcShort(0, b), makeField16(n).of(v))
	})
}
