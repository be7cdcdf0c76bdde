package transport

import (
	"fmt"
	"runtime/debug"
	"slices"
	"syscall"
	"unsafe"

	"github.com/verbena-rdma/verbena/soft/internal/roce/dma"
	"github.com/verbena-rdma/verbena/verbs"
)

// appendInline copies the caller's bytes that the entries name by address:
// inline data needs no registration, so there is no region to take them from.
func appendInline(dst []byte, sgl []verbs.SGE) ([]byte, error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // for dma.Copy
	for i := range sgl {
		n := int(sgl[i].Length)
		if n == 0 {
			continue
		}
		at := len(dst)
		dst = slices.Grow(dst, n)[:at+n]
		if dma.Copy(dst[at:], unsafe.Slice((*byte)(addressOf(sgl[i].Addr)), n)) != dma.NoFault {
			return dst[:at], fmt.Errorf("%d bytes inline at address %#x: they cannot be read: %w: %w", n, sgl[i].Addr, syscall.EFAULT, verbs.ErrInvalid)
		}
	}
	return dst, nil
}

// addressOf makes a pointer of an address that the caller vouches for.
//
//go:nocheckptr
func addressOf(addr uint64) unsafe.Pointer {
	p := uintptr(addr)
	return *(*unsafe.Pointer)(unsafe.Pointer(&p))
}
