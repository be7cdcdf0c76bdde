//go:build race || amd64

package dma

import "unsafe"

// overlap reports whether dst, which must not be empty, overlaps the first len(dst) bytes of
// src.
func overlap(dst, src []byte) bool {
	d, s, n := uintptr(unsafe.Pointer(&dst[0])), uintptr(unsafe.Pointer(&src[0])), uintptr(len(dst))
	return d < s+n && s < d+n
}
