package dma

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"
)

// Far is memory that may lie anywhere in the process, also in free memory of Go's heap. The garbage
// collector ends the process if it finds a pointer there. So only the functions that access the memory
// make one, in frames that the collector does not see: they do not return to the scheduler.
type Far struct{ Base, Len uintptr }

// FarOf returns where b is.
func FarOf(b []byte) Far { return Far{uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b))} }

// Bytes returns the memory, which must be accessible and stay so.
func (f Far) Bytes() []byte { return unsafe.Slice((*byte)(pointer(f.Base)), f.Len) }

// Slice returns n bytes from an offset. The caller has checked the bounds.
func (f Far) Slice(off, n uint64) Far { return Far{f.Base + uintptr(off), uintptr(n)} }

// IsWord reports whether f is an aligned word.
func (f Far) IsWord() bool { return f.Len == 8 && f.Base&7 == 0 }

// Write is Copy of all of src to the beginning of f.
func (f Far) Write(src []byte) (fault Fault) {
	defer func() {
		if r := recover(); r != nil {
			fault = faultOf(r, f)
		}
	}()
	if len(src) == 8 && f.Base&7 == 0 {
		storeFar(f.Base, binary.NativeEndian.Uint64(src))
		return NoFault
	}
	writeFar(f.Base, src)
	return NoFault
}

// Read fills dst with the beginning of f.
func (f Far) Read(dst []byte) (fault Fault) {
	defer func() {
		if r := recover(); r != nil {
			fault = faultOf(r, FarOf(dst))
		}
	}()
	readFar(dst, f.Base)
	return NoFault
}

// FetchAdd atomically adds to an aligned word, and returns its original value.
func (f Far) FetchAdd(add uint64) (original uint64, fault Fault) {
	defer func() {
		if r := recover(); r != nil {
			fault = faultOf(r, f)
		}
	}()
	return addFar(f.Base, add) - add, NoFault
}

// CompareSwap atomically changes an aligned word if it has the expected value, and returns its
// original value.
func (f Far) CompareSwap(expected, swap uint64) (original uint64, fault Fault) {
	defer func() {
		if r := recover(); r != nil {
			fault = faultOf(r, f)
		}
	}()
	for {
		original, swapped := swapFar(f.Base, expected, swap)
		if swapped || original != expected {
			return original, NoFault
		}
	}
}

// pointer converts an address. Callers do not keep the pointer across a call into the scheduler.
func pointer(at uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&at)) }

//go:nosplit
//go:noinline
func addFar(at uintptr, add uint64) uint64 {
	touch((*uint64)(pointer(at)))
	return atomic.AddUint64((*uint64)(pointer(at)), add)
}

//go:nosplit
//go:noinline
func swapFar(at uintptr, expected, swap uint64) (original uint64, swapped bool) {
	touch((*uint64)(pointer(at)))
	word := (*uint64)(pointer(at))
	original = atomic.LoadUint64(word)
	return original, original == expected && atomic.CompareAndSwapUint64((*uint64)(pointer(at)), expected, swap)
}
