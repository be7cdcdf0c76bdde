package dma

import (
	"runtime"
	"sync/atomic"
	"unsafe"
)

// Fault says which memory a processor could not access: it is not mapped, its file is shorter now,
// or it must not be written.
type Fault uint8

const (
	NoFault     Fault = iota
	TargetFault       // of what is written, or changed
	SourceFault       // of what is read
)

// Copy copies min(len(dst), len(src)) bytes. 8 bytes to an aligned address are one store. After a
// fault, part of them may have been copied.
//
// Faults are those of goroutines that have called [debug.SetPanicOnFault]: of others, the process
// ends. So it is with all functions of this package.
func Copy(dst, src []byte) (f Fault) {
	defer func() {
		if r := recover(); r != nil {
			f = faultOf(r, dst)
		}
	}()
	if len(dst) == 8 && len(src) == 8 && uintptr(unsafe.Pointer(unsafe.SliceData(dst)))&7 == 0 {
		store(word(dst), src)
		return NoFault
	}
	copyBytes(dst, src)
	return NoFault
}

// FetchAdd adds to an aligned word in one step, and returns what it was.
func FetchAdd(b []byte, add uint64) (original uint64, f Fault) {
	defer func() {
		if r := recover(); r != nil {
			f = faultOf(r, b)
		}
	}()
	_ = touch(word(b))
	return atomic.AddUint64(word(b), add) - add, NoFault
}

// CompareSwap changes an aligned word in one step if it is what is expected, and returns what it
// was.
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

// word is the aligned word that 8 bytes are.
func word(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(unsafe.SliceData(b))) }

// faultOf is the fault that a panic was about. A panic of another kind goes on.
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
