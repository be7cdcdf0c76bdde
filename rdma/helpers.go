package rdma

import (
	"sync"

	"github.com/verbena-rdma/verbena/internal/fifo"
)

// maxHelpers bounds the goroutines on which a context waits for calls that block.
const maxHelpers = 16

// helpers make calls of the device that may block for seconds, such as those in which the
// kernel waits for a peer, on goroutines beside the engine's.
type helpers struct {
	add  func(func()) // runs a function on the engine's goroutine
	busy int          // calls whose follow-up has not run; the engine's goroutine has it

	mu      sync.Mutex
	waiting fifo.Queue[func() func()]
	working int
	done    sync.WaitGroup
}

// run makes a call on another goroutine. What it returns runs on the engine's goroutine
// afterwards. The context must not become Idle before that.
func (h *helpers) run(call func() (then func())) {
	h.busy++
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiting.Push(call)
	if h.working < maxHelpers {
		h.working++
		h.done.Go(h.work)
	}
}

func (h *helpers) work() {
	for call := h.next(); call != nil; call = h.next() {
		then := call()
		h.add(func() {
			h.busy--
			then()
		})
	}
}

// next returns a call, or nil if there is none: its caller is done.
func (h *helpers) next() func() func() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiting.Len() == 0 {
		h.working--
		return nil
	}
	return h.waiting.Pop()
}
