//go:build !linux

package spin

// yieldProcessor does nothing: the system preempts the thread by itself.
func yieldProcessor() {}
