package load

import "encoding/binary"

// bitOf is where the i-th byte of a word in memory begins in its value.
func bitOf(i int) int {
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		return 8 * i
	}
	return 24 - 8*i
}
