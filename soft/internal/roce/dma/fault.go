package dma

import (
	"runtime"
	"sync/atomic"
	"unsafe"
)

// Fault says which memory the processor could not access: the memory is not mapped, its file
// has shrunk, or it is read-only.
type Fault uint8

const (
	NoFault     Fault = iota
	TargetFault       // in the memory to be written or changed
	SourceFault       // in the memory to be read
)

// Copy copies min(len(dst), len(src)) bytes. 8 bytes to an aligned address are one store.
// After a fault, part of them may have been copied.
//
// The functions of this package return faults only on goroutines that have called
// [debug.SetPanicOnFault]. On others, a fault ends the process.
func Copy(dst, src []byte) (f Fault) {
	defer func() {
		if r := recover(); r != nil {
			f = faultOf(r, dst)
		}
	}()
	if len(src) == 8 && IsWord(dst) {
		store(word(dst), src)
		return NoFault
	}
	copyBytes(dst, src)
	return NoFault
}

// FetchAdd atomically adds to an aligned word, and returns its original value.
func FetchAdd(b []byte, add uint64) (original uint64, f Fault) {
	defer func() {
		if r := recover(); r != nil {
			f = faultOf(r, b)
		}
	}()
	_ = touch(word(b))
	return atomic.AddUint64(word(b), add) - add, NoFault
}

// CompareSwap atomically changes an aligned word if it has the expected value, and returns its
// original value.
func CompareSwap(b []byte, expected, swap uint64) (original uint64, f Fault) {
	defer func() {
		if r := recover(); r != nil {
			f = faultOf(r, b)
		}
	}()
	_ = touch(word(b))
	for {
		original = atomic.LoadUint64(word(b))
		if original != expected || atomic.CompareAndSwapUint64(word(b), expected, swap) {
			return original, NoFault
		}
	}
}

// IsWord reports whether b is an aligned word.
func IsWord(b []byte) bool {
	return len(b) == 8 && uintptr(unsafe.Pointer(unsafe.SliceData(b)))&7 == 0
}

// word returns 8 aligned bytes as a word.
func word(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(unsafe.SliceData(b))) }

// faultOf returns the fault that caused a panic. It passes on any other panic.
func faultOf(panicked any, target []byte) Fault {
	fault, ok := panicked.(interface {
		runtime.Error
		Addr() uintptr // see debug.SetPanicOnFault
	})
	if !ok {
		panic(panicked)
	}
	if at := uintptr(unsafe.Pointer(unsafe.SliceData(target))); fault.Addr()-at < uintptr(len(target)) {
		return TargetFault
	}
	return SourceFault
}
