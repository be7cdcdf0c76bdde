package dma

import (
	"runtime"
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
			f = faultOf(r, FarOf(dst))
		}
	}()
	if len(src) == 8 && FarOf(dst).IsWord() {
		store(word(dst), src)
		return NoFault
	}
	copyBytes(dst, src)
	return NoFault
}

// word returns 8 aligned bytes as a word.
func word(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(unsafe.SliceData(b))) }

// faultOf returns the fault that caused a panic. It passes on any other panic.
func faultOf(panicked any, target Far) Fault {
	fault, ok := panicked.(interface {
		runtime.Error
		Addr() uintptr // see debug.SetPanicOnFault
	})
	if !ok {
		panic(panicked)
	}
	if fault.Addr()-target.Base < target.Len {
		return TargetFault
	}
	return SourceFault
}
