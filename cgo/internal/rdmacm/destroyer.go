//go:build linux && cgo && verbs

package rdmacm

import (
	"sync"

	"github.com/verbena-rdma/verbena/internal/fifo"
)

// destroyer destroys IDs on goroutines of its own. Linux waits in rdma_destroy_id(3) until the
// peer has answered the last message, or its last retransmission has timed out: 17 s if the
// peer's host is down. Only the manager's Close waits for that.
type destroyer struct {
	mu      sync.Mutex
	waiting fifo.Queue[rawID]
	working int
	done    sync.WaitGroup
}

// maxDestroying limits the number of waiting threads.
const maxDestroying = 16

// destroy destroys an ID later. Until then, events of the ID may still be taken.
func (d *destroyer) destroy(id rawID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting.Push(id)
	if d.working < maxDestroying {
		d.working++
		d.done.Go(d.work)
	}
}

func (d *destroyer) work() {
	for id := d.next(); id != nil; id = d.next() {
		id.destroy()
	}
}

// next returns an ID to destroy, or nil if there is none; the caller then ends.
func (d *destroyer) next() rawID {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.waiting.Len() == 0 {
		d.working--
		return nil
	}
	return d.waiting.Pop()
}

// wait waits until all IDs have been destroyed. No ID may be added after the call.
func (d *destroyer) wait() { d.done.Wait() }
