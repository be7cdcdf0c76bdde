package rdma

import "github.com/verbena-rdma/verbena/internal/fifo"

// reports is the part of a context that calls the program for what has happened to connections,
// in order, and never inside another callback.
type reports struct {
	core  *core
	queue fifo.Queue[func()]
}

// add queues a call of the program.
func (r *reports) add(call func()) {
	r.queue.Push(call)
	r.core.wake()
}

func (r *reports) open() error { return nil }

// work implements part.
func (r *reports) work() (n int) {
	for ; r.queue.Len() > 0; n++ {
		r.core.report(r.queue.Pop())
		r.core.control.Yield()
	}
	return n
}

// busy implements part.
func (r *reports) busy() bool { return r.queue.Len() > 0 }

// close implements part.
func (r *reports) close() error {
	r.queue.Clear()
	return nil
}
