package transport

import (
	"unsafe"

	"github.com/verbena-rdma/verbena/verbs"
)

// appendInline copies the caller's bytes that the entries name by address:
// inline data needs no registration, so there is no region to take them from.
func appendInline(dst []byte, sgl []verbs.SGE) []byte {
	for i := range sgl {
		if sgl[i].Length > 0 {
			dst = append(dst, unsafe.Slice((*byte)(addressOf(sgl[i].Addr)), sgl[i].Length)...)
		}
	}
	return dst
}

// addressOf makes a pointer of an address that the caller vouches for.
//
//go:nocheckptr
func addressOf(addr uint64) unsafe.Pointer {
	p := uintptr(addr)
	return *(*unsafe.Pointer)(unsafe.Pointer(&p))
}
