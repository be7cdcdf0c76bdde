//go:build amd64 || 386

package dma

// StoreBarrier makes earlier stores of this thread visible to other processors before later
// ones. Processors of x86 keep that order without it.
func StoreBarrier() {}
