package mmap

import (
	"fmt"
	"math"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	hugePage     = 2 << 20
	hugePage2MiB = 21 << unix.MAP_HUGE_SHIFT
)

// allocateHuge is allocate with huge pages, at which the memory begins.
func allocateHuge(size int, pages Pages) (mem []byte, free func() error, err error) {
	if size > math.MaxInt-2*hugePage {
		return nil, nil, fmt.Errorf("%w: %d bytes are more than this system can allocate", ErrRange, size)
	}
	length, flags := (size+hugePage-1)&^(hugePage-1), unix.MAP_ANON|unix.MAP_PRIVATE
	if pages == HugePages {
		flags |= unix.MAP_HUGETLB | hugePage2MiB
	} else {
		length += hugePage // since it begins anywhere
	}
	all, err := unix.Mmap(-1, 0, length, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		if pages == HugePages && err == unix.ENOMEM {
			err = fmt.Errorf("%w: too few huge pages are free; reserve more in /proc/sys/vm/nr_hugepages", err)
		}
		return nil, nil, fmt.Errorf("allocate %d bytes: mmap: %w", size, err)
	}
	skip := 0
	if pages == TransparentHugePages {
		skip = -int(uintptr(unsafe.Pointer(unsafe.SliceData(all)))) & (hugePage - 1)
		_ = unix.Madvise(all, unix.MADV_HUGEPAGE) // a kernel without them has its own pages
	}
	return all[skip : skip+size : skip+size], func() error {
		if err := unix.Munmap(all); err != nil {
			return fmt.Errorf("free %d bytes: munmap: %w", size, err)
		}
		return nil
	}, nil
}

// prefer asks for pages of a NUMA node, for those that are not there yet (mbind(2)). A kernel that refuses has others.
func prefer(mem []byte, node int) {
	const preferred = 1 // MPOL_PREFERRED
	var nodes [1024 / 64]uint64
	if node >= 64*len(nodes) {
		return
	}
	nodes[node/64] = 1 << (node % 64)
	first := unsafe.Pointer(unsafe.SliceData(mem))
	_, _, _ = unix.Syscall6(unix.SYS_MBIND, uintptr(first), uintptr(len(mem)), preferred, uintptr(unsafe.Pointer(&nodes)), uintptr(64*len(nodes)), 0)
}

func prefault(mem []byte) error {
	err := unix.Madvise(mem, unix.MADV_POPULATE_WRITE)
	if err == unix.EINVAL { // before Linux 5.14
		touch(mem)
		err = nil
	}
	return err
}
