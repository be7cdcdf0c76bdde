//go:build linux && cgo && verbs

package rdmacm

import (
	"sync"

	"github.com/verbena-rdma/verbena/internal/fifo"
)

// destroyer destroys IDs on goroutines of its own. Linux waits in rdma_destroy_id(3) until the
// peer has answered the last message, or all repetitions of it are over: 17 s where the peer's
// host has gone. Only the manager's Close waits for that.
type destroyer struct {
	mu      sync.Mutex
	waiting fifo.Queue[rawID]
	working int
	done    sync.WaitGroup
}

// maxDestroying bounds the threads that wait.
const maxDestroying = 16

// destroy destroys an ID soon. Events of it may still be taken until it has been.
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

// next returns an ID to destroy, or nil if there is none: its caller is done.
func (d *destroyer) next() rawID {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.waiting.Len() == 0 {
		d.working--
		return nil
	}
	return d.waiting.Pop()
}

// wait waits until all have been destroyed. None is added any more.
func (d *destroyer) wait() { d.done.Wait() }
