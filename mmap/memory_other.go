//go:build !unix

package mmap

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"unsafe"
)

// allocate returns zeroed, pinned memory that begins at a page, and a function that unpins it.
func allocate(size int) (mem []byte, free func() error, err error) {
	page := os.Getpagesize()
	const largest = math.MaxInt >> (strconv.IntSize / 64 * 16) // make panics above it
	if size > largest-page {
		return nil, nil, fmt.Errorf("%w: %d bytes are more than this system can allocate", ErrRange, size)
	}
	raw := make([]byte, size+page-1)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(raw)))) & (page - 1)
	mem = raw[skip : skip+size : skip+size]
	return mem, pin(mem), nil
}
