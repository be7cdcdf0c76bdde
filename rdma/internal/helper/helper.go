// Package helper makes calls of a device that may block for seconds, such as those in which the
// kernel waits for a peer.
package helper

import (
	"sync"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/internal/profiling"
)

const (
	// maxGoroutines is the most goroutines of a pool.
	maxGoroutines = 16
	// maxRepeating is how many of them may make repeated calls at a time, so that peers that
	// are down do not delay those that are up.
	maxRepeating = maxGoroutines / 2
)

// Pool is the helpers of a context: goroutines that end when there is nothing to do.
type Pool struct {
	Host        host.Host
	Device      string       // its name, for profiles
	RunOnEngine func(func()) // runs a function on the engine's goroutine

	busy      int // calls whose follow-up has not run; only the engine's goroutine uses it
	mu        sync.Mutex
	waiting   fifo.Queue[func() func()]
	repeated  fifo.Queue[func() func()] // calls that have failed before; those of waiting go first
	working   int
	repeating int // of these, how many make calls of repeated
	done      sync.WaitGroup
}

// Run makes a call on another goroutine. The function that the call returns runs on the
// engine's goroutine afterwards; the context must not become Idle before that.
func (h *Pool) Run(call func() (then func())) { h.push(&h.waiting, call) }

// Repeat is Run for a call that has failed before.
func (h *Pool) Repeat(call func() (then func())) { h.push(&h.repeated, call) }

// Busy reports whether a call, or the function that it has returned, is still to run.
func (h *Pool) Busy() bool { return h.busy > 0 }

// Wait waits for the calls.
func (h *Pool) Wait() { h.done.Wait() }

func (h *Pool) push(queue *fifo.Queue[func() func()], call func() func()) {
	h.busy++
	h.mu.Lock()
	defer h.mu.Unlock()
	queue.Push(call)
	if h.working < maxGoroutines {
		h.working++
		host.Go(h.Host, &h.done, h.work)
	}
}

// work makes calls, on a goroutine of the pool.
func (h *Pool) work() {
	profiling.Label("calls that block", h.Device, "")
	for call, repeated := h.next(false); call != nil; call, repeated = h.next(repeated) {
		then := call()
		h.RunOnEngine(func() {
			h.busy--
			then()
		})
	}
}

// next returns a call, and whether it is a repeated one. Without calls it returns nil, and its
// caller ends. The argument says whether the caller's last call was a repeated one.
func (h *Pool) next(repeated bool) (func() func(), bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if repeated {
		h.repeating--
	}
	switch {
	case h.waiting.Len() > 0:
		return h.waiting.Pop(), false
	case h.repeated.Len() > 0 && h.repeating < maxRepeating:
		h.repeating++
		return h.repeated.Pop(), true
	}
	h.working--
	return nil, false
}
