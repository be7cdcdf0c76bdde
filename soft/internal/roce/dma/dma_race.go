//go:build race

package dma

import "unsafe"

// copyBytes copies like the built-in. It copies word by word, since the race detector watches
// the built-in and the atomic operations even in a function that is excluded from it.
//
//go:norace
//go:nosplit
func copyBytes(dst, src []byte) {
	n := min(len(dst), len(src))
	if n > 0 && overlap(dst[:n], src) && uintptr(unsafe.Pointer(&dst[0])) > uintptr(unsafe.Pointer(&src[0])) {
		for i := n - 1; i >= 0; i-- {
			dst[i] = src[i]
		}
		return
	}
	i := 0
	for ; i+8 <= n; i += 8 {
		*(*[8]byte)(unsafe.Pointer(&dst[i])) = *(*[8]byte)(unsafe.Pointer(&src[i]))
	}
	for ; i < n; i++ {
		dst[i] = src[i]
	}
}

// store writes a word that is never torn.
//
//go:norace
func store(addr *uint64, src []byte) { *(*[8]byte)(unsafe.Pointer(addr)) = [8]byte(src) }

//go:norace
//go:nosplit
//go:noinline
func storeFar(at uintptr, value uint64) { *(*uint64)(pointer(at)) = value }

//go:norace
//go:nosplit
//go:noinline
//go:nocheckptr
func writeFar(to uintptr, src []byte) { copyBytes(unsafe.Slice((*byte)(pointer(to)), len(src)), src) }

//go:norace
//go:nosplit
//go:noinline
//go:nocheckptr
func readFar(dst []byte, from uintptr) {
	copyBytes(dst, unsafe.Slice((*byte)(pointer(from)), len(dst)))
}

// touch reads a word, so that an unreadable word faults here. In an atomic operation, the
// fault would occur in the race detector's own code, and end the process.
//
//go:norace
//go:nosplit
//go:noinline
func touch(addr *uint64) byte { return *(*byte)(unsafe.Pointer(addr)) }
