package mmap

import (
	"fmt"
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

// allocateFor allocates memory that suits a device.
func allocateFor(dev verbs.Device, size int) (mem []byte, free func() error, err error) {
	if able, ok := dev.(optional.MemoryDevice); ok {
		if mem, free, err = able.AllocMemory(size); err == nil {
			return mem, free, nil
		}
	}
	return allocate(size)
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
