package wire

// PSNMask covers the 24 bits of a packet sequence number.
const PSNMask = 1<<24 - 1

// PSNAdd is the packet sequence number n packets after a, or before it if n is
// negative, modulo 2^24.
func PSNAdd(a uint32, n int) uint32 { return (a + uint32(n)) & PSNMask }

// PSNDiff is the signed distance a-b modulo 2^24, in -2^23 … 2^23-1: positive if
// a comes after b (IBTA 9.7).
func PSNDiff(a, b uint32) int32 { return int32((a-b)<<8) >> 8 }
