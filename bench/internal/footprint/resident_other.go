//go:build !linux

package footprint

// residentMemory returns 0: the size is not known on this system.
func residentMemory() uint64 { return 0 }
