package load

import "encoding/binary"

// bitOf returns the position, in the value of a 32-bit word, of the lowest bit of its i-th
// byte in memory.
func bitOf(i int) int {
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		return 8 * i
	}
	return 24 - 8*i
}
