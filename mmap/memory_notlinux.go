//go:build !linux

package mmap

import "fmt"

func allocateHuge(int, Pages) (mem []byte, free func() error, err error) {
	return nil, nil, fmt.Errorf("%w: huge pages are for Linux", ErrNotSupported)
}

func prefer([]byte, int) {}

func prefault(mem []byte) error {
	touch(mem)
	return nil
}
