// Package footprint measures the memory of a process, for tests and benchmarks.
package footprint

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
)

// Footprint is the memory of this process, in bytes.
type Footprint struct {
	Heap     uint64 // live objects
	Resident uint64 // heap, stacks and everything else in memory; 0: not known on this system
}

// Measure collects garbage first.
func Measure() Footprint {
	heap := Heap()
	debug.FreeOSMemory() // so that free memory is not counted
	return Footprint{heap, Resident()}
}

// Heap returns the size of the live heap, in bytes.
func Heap() uint64 {
	runtime.GC()
	runtime.GC() // the first one only empties pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Resident returns the resident memory, in bytes; 0 if it is not known, as on other systems than
// Linux.
func Resident() uint64 {
	text, _ := os.ReadFile("/proc/self/statm")
	var size, pages uint64
	_, _ = fmt.Sscan(string(text), &size, &pages) // pages stay 0 if it fails
	return pages * uint64(os.Getpagesize())
}

// Grown returns by how much the footprint has grown for each of n objects, in bytes.
func (f Footprint) Grown(before Footprint, n int) (heap, resident float64) {
	per := func(after, before uint64) float64 { return (float64(after) - float64(before)) / float64(n) }
	return per(f.Heap, before.Heap), per(f.Resident, before.Resident)
}
