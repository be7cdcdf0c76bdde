// Package inorder makes what the Go runtime chooses follow from a seed: which goroutine goes on, which
// case of a select is taken when several are ready, where a loop over a map begins, the order of timers
// that are due at once, and the numbers of math/rand/v2. Then ordinary goroutines do the same in every run.
//
// There is no call for that in the runtime. So one processor works at a time, garbage is collected only
// between runs, and this package writes to the runtime's record of the thread (m): the state of its
// random numbers, and that its goroutine is not to be preempted. It finds the fields by what they do.
// Where it does not find them, as in a version of Go that it does not know, it leaves them alone.
package inorder

import (
	"runtime"
	"runtime/debug"
)

// Order is the time in which the runtime is in order. The whole process is, so there is one at a time.
type Order struct {
	processors, gc, profile int
	thread                  thread // that was changed last
}

// Known reports whether the runtime is known. It is not with the race detector, which makes it choose at random.
func Known() bool { return fields().known() }

// Begin begins it. If the runtime is not known, goroutines run one at a time, and all else is as always.
func Begin() *Order {
	o := &Order{
		processors: runtime.GOMAXPROCS(1),
		gc:         debug.SetGCPercent(-1),
		profile:    runtime.MemProfileRate,
	}
	runtime.MemProfileRate = 0 // it takes random numbers
	return o
}

// Collect collects garbage, which empties pools, too.
func (o *Order) Collect() {
	o.thread.restore()
	o.thread = thread{}
	runtime.GC()
	runtime.GC() // what was in a sync.Pool outlives the first
}

// End ends it.
func (o *Order) End() {
	o.thread.restore()
	runtime.MemProfileRate = o.profile
	debug.SetGCPercent(o.gc)
	runtime.GOMAXPROCS(o.processors)
}

// mix returns a number that looks random.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
