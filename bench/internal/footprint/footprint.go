// Package footprint measures the memory of a process.
package footprint

import (
	"runtime"
	"runtime/debug"
)

// Footprint is the memory of this process, in bytes.
type Footprint struct {
	Heap     uint64 // live objects
	Stacks   uint64 // of goroutines
	Resident uint64 // heap, stacks and everything else in memory; 0: not known on this system
}

// Measure collects garbage first.
func Measure() Footprint {
	m := collected()
	debug.FreeOSMemory() // so that free memory is not counted
	return Footprint{Heap: m.HeapAlloc, Stacks: m.StackInuse, Resident: residentMemory()}
}

// Heap returns the size of the live heap, in bytes.
func Heap() uint64 { return collected().HeapAlloc }

func collected() (m runtime.MemStats) {
	runtime.GC()
	runtime.GC() // the first one only empties pools
	runtime.ReadMemStats(&m)
	return m
}

// Grown returns by how much the footprint has grown for each of n objects, in bytes.
func (f Footprint) Grown(before Footprint, n int) (heap, stacks, resident float64) {
	per := func(after, before uint64) float64 { return (float64(after) - float64(before)) / float64(n) }
	return per(f.Heap, before.Heap), per(f.Stacks, before.Stacks), per(f.Resident, before.Resident)
}
