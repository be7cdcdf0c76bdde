//go:build race

package dma

import "unsafe"

// copyBytes copies like the built-in. It copies word by word, since the race detector watches
// the built-in and the atomic operations even in a function that is excluded from it.
//
//go:norace
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

// touch reads a word, so that an unreadable word faults here. In an atomic operation, the
// fault would occur in the race detector's own code, and end the process.
//
//go:norace
//go:noinline
func touch(addr *uint64) byte { return *(*byte)(unsafe.Pointer(addr)) }
