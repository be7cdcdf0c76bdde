package main

import "runtime/debug"

// footprint is the memory of this process, in bytes.
type footprint struct {
	heap     uint64 // what lives on it
	resident uint64 // all that is in memory: heap, stacks and what is outside of both
}

func measureFootprint() footprint {
	f := footprint{heap: heap()}
	debug.FreeOSMemory() // so that what is free is not counted
	f.resident = residentMemory()
	return f
}

// grown is by how much each of n things has made it larger, in bytes.
func (f footprint) grown(before footprint, n int) (heap, resident float64) {
	per := func(after, before uint64) float64 { return (float64(after) - float64(before)) / float64(n) }
	return per(f.heap, before.heap), per(f.resident, before.resident)
}
