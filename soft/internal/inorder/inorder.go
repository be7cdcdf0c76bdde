// Package inorder makes what the Go runtime chooses follow from a seed: which goroutine goes on, which
// case of a select is taken when several are ready, where a loop over a map begins, the order of timers
// that are due at once, and the numbers of math/rand/v2. Then ordinary goroutines do the same in every run.
//
// There is no call for that in the runtime. So one processor works at a time, garbage is collected only
// between runs, and this package writes to the runtime's records of the thread (m) and the processor (p):
// the state of its random numbers, and how many goroutines went on. It finds the fields by what they do.
// Where it does not find them, as in a version of Go that it does not know, Known reports false.
package inorder

import (
	"runtime"
	"runtime/debug"
)

// Order is the time in which the runtime is in order. The whole process is, so there is one at a time.
type Order struct {
	processors, gc, profile int
	limit                   int64
	thread                  thread // that was changed last
	seeded                  int64  // when: the monotonic clock, which is not that of a bubble
	instant, calls          uint64 // of Seed
	disturbed               bool
}

// memory is how many bytes a process may have without collecting garbage.
const memory = 2 << 30

// Known reports whether the runtime is known. It is not with the race detector, which makes it choose at random.
func Known() bool { return fields().known() }

// Begin makes the process serial until End. The runtime must be known.
func Begin() *Order {
	o := &Order{
		processors: runtime.GOMAXPROCS(1),
		gc:         debug.SetGCPercent(-1),
		profile:    runtime.MemProfileRate,
		limit:      debug.SetMemoryLimit(-1),
	}
	debug.SetMemoryLimit(min(o.limit, memory))
	runtime.MemProfileRate = 0 // it takes random numbers
	return o
}

// Collect begins a run. It collects garbage, which empties pools, too.
func (o *Order) Collect() {
	o.thread.restore()
	o.thread, o.instant, o.calls, o.disturbed = thread{}, 0, 0, false
	runtime.GC()
	runtime.GC() // what was in a sync.Pool outlives the first
}

// Disturbed reports whether something outside of the process may have changed the order of the run: it
// waited so long that the runtime may have preempted a goroutine, or a system call took its thread.
func (o *Order) Disturbed() bool { return o != nil && o.disturbed }

// End lets the runtime choose again.
func (o *Order) End() {
	o.thread.restore()
	runtime.MemProfileRate = o.profile
	debug.SetMemoryLimit(o.limit)
	debug.SetGCPercent(o.gc)
	runtime.GOMAXPROCS(o.processors)
}

// next returns a seed for an event: those of one instant have different ones.
func (o *Order) next(seed, instant, place uint64) uint64 {
	if instant != o.instant {
		o.instant, o.calls = instant, 0
	}
	o.calls++
	return mix(mix(mix(seed)+instant) + place<<32 + o.calls)
}

// mix returns a number that looks random.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
