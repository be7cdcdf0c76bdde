//go:build !linux

package main

// residentMemory is not known here.
func residentMemory() uint64 { return 0 }
