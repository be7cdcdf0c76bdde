package mmap

import (
	"fmt"

	"golang.org/x/sys/unix"
)

func duplicate(fd int) (int, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return own, nil
}

func release(fd int) error { return unix.Close(fd) }
