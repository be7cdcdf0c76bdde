package rdma

import (
	"sync"

	"github.com/verbena-rdma/verbena/internal/fifo"
)

const (
	// maxHelpers bounds the goroutines on which a context waits for calls that block.
	maxHelpers = 16
	// maxRepeating is how many of them are at repeated calls at a time: peers that are down
	// must not keep out those that are up.
	maxRepeating = maxHelpers / 2
)

// helpers make calls of the device that may block for seconds, such as those in which the
// kernel waits for a peer, on goroutines beside the engine's.
type helpers struct {
	add  func(func()) // runs a function on the engine's goroutine
	busy int          // calls whose follow-up has not run; the engine's goroutine has it

	mu        sync.Mutex
	waiting   fifo.Queue[func() func()]
	repeated  fifo.Queue[func() func()] // likewise; those of waiting go first
	working   int
	repeating int // of these, at calls of repeated
	done      sync.WaitGroup
}

// run makes a call on another goroutine. What it returns runs on the engine's goroutine
// afterwards. The context must not become Idle before that.
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
		h.done.Go(h.work)
	}
}

func (h *helpers) work() {
	for call, repeated := h.next(false); call != nil; call, repeated = h.next(repeated) {
		then := call()
		h.add(func() {
			h.busy--
			then()
		})
	}
}

// next returns a call, and whether it is repeated, or nil if there is none: its caller is
// done. repeated says whether the caller's last call was.
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
