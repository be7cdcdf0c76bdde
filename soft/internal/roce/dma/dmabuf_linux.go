package dma

import (
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/verbs"
)

// dmaBufMagic is the type of the file system of dma-bufs (include/uapi/linux/magic.h).
const dmaBufMagic = 0x444d4142

// enotsupp is what the kernel's own drivers return for unsupported operations
// (include/linux/errno.h).
const enotsupp = unix.Errno(524)

// MapDMABuf maps bytes of a dma-buf. It refuses other files: these can shrink, and an access
// beyond the end of a file is a fault.
func MapDMABuf(fd int, offset, length uint64, write bool) (mem []byte, unmap func() error, err error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return nil, nil, fmt.Errorf("query the file descriptor: %w: %w", err, verbs.ErrInvalid)
	}
	if fs.Type != dmaBufMagic {
		return nil, nil, fmt.Errorf("the file descriptor is not a dma-buf: %w", verbs.ErrInvalid)
	}
	if offset+length > math.MaxInt {
		return nil, nil, fmt.Errorf("the offset or length is too large for this system: %w", verbs.ErrInvalid)
	}
	protection := unix.PROT_READ
	if write {
		protection |= unix.PROT_WRITE
	}
	// Map from the start of the dma-buf: some exporters ignore the offset (drm_gem_shmem_fault
	// of Linux 6.1).
	all, err := unix.Mmap(fd, 0, int(offset+length), protection, unix.MAP_SHARED)
	switch {
	case errors.Is(err, unix.EINVAL):
		return nil, nil, fmt.Errorf("mmap: %w: the range exceeds the dma-buf: %w", err, verbs.ErrInvalid)
	case errors.Is(err, unix.EACCES):
		return nil, nil, fmt.Errorf("mmap: %w: export it for reading and writing (O_RDWR): %w", err, verbs.ErrInvalid)
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, enotsupp):
		return nil, nil, fmt.Errorf("mmap: %w: the exporter gives the processor no access to the dma-buf; use an adapter: %w", err, verbs.ErrNotSupported)
	case err != nil:
		return nil, nil, fmt.Errorf("mmap: %w", err)
	}
	return all[offset:], func() error {
		if err := unix.Munmap(all); err != nil {
			return fmt.Errorf("unmap a dma-buf: %w", err)
		}
		return nil
	}, nil
}
