//go:build !linux

package mmap

import (
	"fmt"
	"runtime"
)

func duplicate(int) (int, error) {
	return -1, fmt.Errorf("%w: dma-bufs exist on Linux only, not on %s", ErrNotSupported, runtime.GOOS)
}

func release(int) error { return nil }
