//go:build unix

package mmap

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// allocate returns zeroed memory outside the Go heap, and a function that unmaps it.
func allocate(size int) (mem []byte, free func() error, err error) {
	mem, err = unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, nil, fmt.Errorf("allocate %d bytes: mmap: %w", size, err)
	}
	return mem, func() error {
		if err := unix.Munmap(mem); err != nil {
			return fmt.Errorf("free %d bytes: munmap: %w", size, err)
		}
		return nil
	}, nil
}
