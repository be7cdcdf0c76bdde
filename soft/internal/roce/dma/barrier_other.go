//go:build !arm64 && !amd64 && !386

package dma

import "sync/atomic"

// StoreBarrier makes earlier stores of this thread visible to other processors before later
// ones. An atomic change of a word is such a barrier on all processors of Go.
func StoreBarrier() {
	var word uint32
	atomic.AddUint32(&word, 1)
}
