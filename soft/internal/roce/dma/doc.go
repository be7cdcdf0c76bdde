// Package dma moves bytes between packets and a program's memory as an adapter would: without
// the race detector. A program that polls memory for its peer's write, or changes memory that
// its peer reads, races with the device by design, and orders its accesses by completions, not
// by Go's memory model.
package dma
