package main

import "runtime/debug"

// footprint is the memory of this process, in bytes.
type footprint struct {
	heap     uint64 // live objects
	resident uint64 // heap, stacks and everything else in memory
}

func measureFootprint() footprint {
	f := footprint{heap: heap()}
	debug.FreeOSMemory() // so that free memory is not counted
	f.resident = residentMemory()
	return f
}

// grown returns by how much the footprint has grown for each of n objects, in bytes.
func (f footprint) grown(before footprint, n int) (heap, resident float64) {
	per := func(after, before uint64) float64 { return (float64(after) - float64(before)) / float64(n) }
	return per(f.heap, before.heap), per(f.resident, before.resident)
}
