package dma

import "unsafe"

// Far is memory of the process by its address, without a pointer.
type Far struct{ Base, Len uintptr }

// FarOf returns where b is.
func FarOf(b []byte) Far { return Far{uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b))} }
