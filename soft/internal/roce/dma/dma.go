//go:build !race

package dma

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"
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

//go:nosplit
//go:noinline
func storeFar(at uintptr, value uint64) { atomic.StoreUint64((*uint64)(pointer(at)), value) }

//go:nosplit
//go:noinline
func writeFar(to uintptr, src []byte) { copy(unsafe.Slice((*byte)(pointer(to)), len(src)), src) }

//go:nosplit
//go:noinline
func readFar(dst []byte, from uintptr) { copy(dst, unsafe.Slice((*byte)(pointer(from)), len(dst))) }

// touch does nothing: only the race detector needs it.
func touch(*uint64) byte { return 0 }
