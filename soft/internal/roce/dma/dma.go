//go:build !race

package dma

import (
	"encoding/binary"
	"sync/atomic"
)

func copyBytes(dst, src []byte) {
	if n := min(len(dst), len(src)); n >= longCopy {
		copyLong(dst[:n], src)
		return
	}
	copy(dst, src)
}

// longCopy is the size from which a copy may use another method.
const longCopy = 16 << 10

// store writes a word that is never torn, and makes earlier writes visible before it: a
// program that sees the word sees them.
func store(addr *uint64, src []byte) { atomic.StoreUint64(addr, binary.NativeEndian.Uint64(src)) }

// touch does nothing: only the race detector needs it.
func touch(*uint64) byte { return 0 }
