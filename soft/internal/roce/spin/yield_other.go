//go:build !linux

package spin

// yieldProcessor does nothing here: the system takes the processor by itself.
func yieldProcessor() {}
