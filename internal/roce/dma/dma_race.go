//go:build race

package dma

import "unsafe"

// Copy copies as the built-in does. It does so word by word, since the race
// detector watches the built-in and the atomic operations even in a function
// that it is told to leave alone.
//
//go:norace
func Copy(dst, src []byte) int {
	n := min(len(dst), len(src))
	if n > 0 && overlap(dst[:n], src) && uintptr(unsafe.Pointer(&dst[0])) > uintptr(unsafe.Pointer(&src[0])) {
		for i := n - 1; i >= 0; i-- {
			dst[i] = src[i]
		}
		return n
	}
	i := 0
	for ; i+8 <= n; i += 8 {
		*(*[8]byte)(unsafe.Pointer(&dst[i])) = *(*[8]byte)(unsafe.Pointer(&src[i]))
	}
	for ; i < n; i++ {
		dst[i] = src[i]
	}
	return n
}

// Store writes a word that is never torn.
//
//go:norace
func Store(addr *uint64, v uint64) { *addr = v }
