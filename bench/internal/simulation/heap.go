package simulation

import "runtime"

// heap returns the bytes of memory that are in use.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // the first one only empties pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
