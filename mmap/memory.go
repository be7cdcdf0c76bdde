package mmap

import (
	"runtime"
	"unsafe"
)

// pinned keeps memory of the Go heap where it is.
type pinned struct{ pinner runtime.Pinner }

// pin pins the memory and returns what unpins it. Memory from elsewhere is left
// as it is.
func pin(mem []byte) (unpin func() error) {
	p := new(pinned)
	p.pinner.Pin(unsafe.SliceData(mem))
	runtime.SetFinalizer(p, (*pinned).keep)
	return func() error {
		runtime.SetFinalizer(p, nil)
		p.pinner.Unpin()
		return nil
	}
}

// keep runs when a Map was dropped without Close. Setting the finalizer again keeps p
// alive: devices can still reach the memory, which has to stay pinned, and a Pinner
// that is collected while it pins something panics.
func (p *pinned) keep() { runtime.SetFinalizer(p, (*pinned).keep) }
