package transport

// queues are the work queues and the completion queues.
type queues struct {
	rq       *RecvQueue
	sendCQ   Completer
	recvCQ   Completer
	sq       sendQueue
	sends    Unpolled
	receives Unpolled
}

// dropReceives drops the receives that have not been polled; those in the queue stay. Places in
// a shared queue are free again.
func (q *QP) dropReceives() {
	n := 0
	if q.inReceive {
		n = 1
	}
	q.receives.Drop(n)
	q.inReceive = false
}

// A work request is outstanding, and keeps its place in the queue, until the program has
// polled its completion or, of a send request without one, that of a later request
// (IBTA 10.8.6). Adapters free places so: a program that needs them earlier would overrun an
// adapter's queue.

// Unpolled counts the requests of one queue pair in one of its queues that are done and still
// keep their places.
type Unpolled struct {
	taken  *int   // places of the queue, which several queue pairs may share
	done   uint64 // requests, ever
	polled uint64 // of them
}

// NewUnpolled returns a count for a queue with so many places taken.
func NewUnpolled(taken *int) Unpolled { return Unpolled{taken: taken} }

// Len is the number of requests.
func (u *Unpolled) Len() int { return int(u.done - u.polled) }

// Add counts another request that is done, and returns what its completion frees.
func (u *Unpolled) Add() Places {
	u.done++
	return Places{of: u, upTo: u.done}
}

// Drop frees the places of all that are done, and of n requests that will never complete.
func (u *Unpolled) Drop(n int) {
	*u.taken -= u.Len() + n
	u.polled = u.done
}

// Places are what a completion frees when it is polled: the place of its request, and those
// of earlier requests that had no completion.
type Places struct {
	of   *Unpolled // nil: none
	upTo uint64    // requests done
}

// Free frees them, unless Drop has, and forgets the queue pair. The lock of the queue pair is
// held.
func (p *Places) Free() {
	u := p.of
	if u == nil {
		return
	}
	p.of = nil
	if p.upTo > u.polled {
		*u.taken -= int(p.upTo - u.polled)
		u.polled = p.upTo
	}
}
