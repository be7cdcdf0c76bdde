package mmap

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"github.com/verbena-rdma/verbena/internal/optional"
	"github.com/verbena-rdma/verbena/verbs"
)

// AllocBytes returns memory that a program can register with devices itself (verbs.PD.RegMR):
// size zeroed bytes, at least 1, which begin at a page and stay where they are until free is
// called. Deregister the memory before free, and do not use it afterwards. Errors match
// ErrRange, or are those of the operating system. A Map allocates its own memory: see Alloc.
func AllocBytes(size int) (mem []byte, free func() error, err error) {
	if size < 1 {
		return nil, nil, fmt.Errorf("allocate memory: %w: %d bytes; at least 1 is needed", ErrRange, size)
	}
	return allocate(size)
}

// Pages are the pages of memory that New allocates. With fewer and larger ones, processors and adapters
// translate addresses faster.
type Pages int

const (
	// SystemPages are the system's. Only memory of these is shared with other processes by a software device,
	// which makes transfers to them faster.
	SystemPages Pages = iota
	// TransparentHugePages asks Linux for huge pages where it has some (madvise(2), MADV_HUGEPAGE).
	TransparentHugePages
	// HugePages are pages of 2 MiB that were reserved in /proc/sys/vm/nr_hugepages (mmap(2), MAP_HUGETLB), on
	// Linux. They are brought in by New. If there are not enough, its error matches syscall.ENOMEM.
	HugePages
)

// allocateFor allocates memory that suits a device.
func allocateFor(dev verbs.Device, cfg *Config) (mem []byte, free func() error, err error) {
	mem, free, err = allocatePages(dev, cfg)
	if err == nil && cfg.Near {
		if attr, err := dev.Query(); err == nil && attr.NUMANode >= 0 {
			prefer(mem, attr.NUMANode)
		}
	}
	if err == nil && (cfg.Prefault || cfg.Pages == HugePages) {
		if err = prefault(mem); err != nil {
			return nil, nil, errors.Join(fmt.Errorf("allocate %d bytes: bring in their pages: %w", cfg.Size, err), free())
		}
	}
	return mem, free, err
}

func allocatePages(dev verbs.Device, cfg *Config) (mem []byte, free func() error, err error) {
	switch cfg.Pages {
	case SystemPages:
		if able, ok := dev.(optional.MemoryDevice); ok {
			if mem, free, err = able.AllocMemory(cfg.Size); err == nil {
				return mem, free, nil
			}
		}
		return allocate(cfg.Size)
	case TransparentHugePages, HugePages:
		return allocateHuge(cfg.Size, cfg.Pages)
	}
	return nil, nil, fmt.Errorf("%w: Pages is %d", ErrInvalid, cfg.Pages)
}

// touch writes to each page.
func touch(mem []byte) {
	for i := 0; i < len(mem); i += os.Getpagesize() {
		mem[i] = 0
	}
}

// pinned keeps memory of the Go heap where it is.
type pinned struct{ pinner runtime.Pinner }

// pin pins the memory and returns a function that unpins it. It does nothing to memory outside
// the Go heap.
func pin(mem []byte) (unpin func() error) {
	p := new(pinned)
	p.pinner.Pin(unsafe.SliceData(mem))
	runtime.SetFinalizer(p, (*pinned).keep)
	return func() error {
		runtime.SetFinalizer(p, nil)
		p.pinner.Unpin()
		return nil
	}
}

// keep runs when a Map was dropped without Close. It sets the finalizer again to keep p alive:
// devices can still reach the memory, which must stay pinned, and a Pinner that is collected
// while it pins something panics.
func (p *pinned) keep() { runtime.SetFinalizer(p, (*pinned).keep) }
