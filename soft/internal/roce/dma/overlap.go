//go:build race || amd64

package dma

import "unsafe"

// overlap reports whether dst, which is not empty, shares memory with as many bytes of src.
func overlap(dst, src []byte) bool {
	d, s, n := uintptr(unsafe.Pointer(&dst[0])), uintptr(unsafe.Pointer(&src[0])), uintptr(len(dst))
	return d < s+n && s < d+n
}
