package rdma

import (
	"sync"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/host"
)

const (
	// maxHelpers is the most goroutines on which a context makes calls that block.
	maxHelpers = 16
	// maxRepeating is how many of them may make repeated calls at a time, so that peers that
	// are down do not delay those that are up.
	maxRepeating = maxHelpers / 2
)

// helpers are goroutines for calls of the device that may block for seconds, such as those in
// which the kernel waits for a peer.
type helpers struct {
	host        host.Host
	runOnEngine func(func()) // runs a function on the engine's goroutine
	busy        int          // calls whose follow-up has not run; only the engine's goroutine uses it

	mu        sync.Mutex
	waiting   fifo.Queue[func() func()]
	repeated  fifo.Queue[func() func()] // calls that have failed before; those of waiting go first
	working   int
	repeating int // of these, how many make calls of repeated
	done      sync.WaitGroup
}

// run makes a call on another goroutine. The function that the call returns runs on the
// engine's goroutine afterwards; the context must not become Idle before that.
func (h *helpers) run(call func() (then func())) { h.push(&h.waiting, call) }

// repeat is run for a call that has failed before.
func (h *helpers) repeat(call func() (then func())) { h.push(&h.repeated, call) }

func (h *helpers) push(queue *fifo.Queue[func() func()], call func() func()) {
	h.busy++
	h.mu.Lock()
	defer h.mu.Unlock()
	queue.Push(call)
	if h.working < maxHelpers {
		h.working++
		host.Go(h.host, &h.done, h.work)
	}
}

func (h *helpers) work() {
	for call, repeated := h.next(false); call != nil; call, repeated = h.next(repeated) {
		then := call()
		h.runOnEngine(func() {
			h.busy--
			then()
		})
	}
}

// next returns a call, and whether it is a repeated one. Without calls it returns nil, and its
// caller ends. The argument says whether the caller's last call was a repeated one.
func (h *helpers) next(repeated bool) (func() func(), bool) {
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
