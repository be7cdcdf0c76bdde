//go:build !race

package dma

import "sync/atomic"

// Copy copies as the built-in does.
func Copy(dst, src []byte) int {
	if n := min(len(dst), len(src)); n >= longCopy {
		return copyLong(dst[:n], src)
	}
	return copy(dst, src)
}

// longCopy is from how many bytes on a copy may be done in another way.
const longCopy = 16 << 10

// Store writes a word that is never torn, and makes earlier writes visible
// before it: a program that sees the word sees them.
func Store(addr *uint64, v uint64) { atomic.StoreUint64(addr, v) }
