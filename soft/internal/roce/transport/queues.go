package transport

// queues are the work queues and the completion queues.
type queues struct {
	rq       *RecvQueue
	sendCQ   Completer
	recvCQ   Completer
	sq       sendQueue
	sends    Unpolled
	receives *Unpolled
	// domain is the protection domain. On an XRC receive queue pair, each request sets it, rq, recvCQ
	// and receives to those of the queue in xrc that it names.
	domain uint32
	xrc    map[uint32]*XRCQueue
}

// dropReceives frees the queue entries of receives that have not been polled, and of the one
// in use. Receives in the queue stay.
func (q *QP) dropReceives() {
	n := 0
	if q.inReceive {
		n = 1
	}
	if q.xrc != nil { // what has not been polled stays the shared receive queue's
		q.rq.taken -= n
	} else {
		q.receives.Drop(n)
	}
	q.inReceive = false
}

// A work request is outstanding, and keeps its entry in the queue, until the program has
// polled its completion. A send request without a completion keeps it until that of a later
// request is polled (IBTA 10.8.6). Adapters free entries in the same way: a program that needs
// them earlier would overrun an adapter's queue.

// Unpolled counts the requests of one queue pair, in one of its queues, that are done but keep
// their entries.
type Unpolled struct {
	taken  *int   // entries in use in the queue, which several queue pairs may share
	done   uint64 // requests done so far
	polled uint64 // requests polled so far
}

// NewUnpolled returns a count for a queue. taken points to the number of its entries in use.
func NewUnpolled(taken *int) Unpolled { return Unpolled{taken: taken} }

// Len returns the number of requests.
func (u *Unpolled) Len() int { return int(u.done - u.polled) }

// Add counts another request that is done, and returns what its completion frees.
func (u *Unpolled) Add() QueueEntries {
	u.done++
	return QueueEntries{unpolled: u, upTo: u.done}
}

// Drop frees the entries of all requests that are done, and of n requests that will never
// complete.
func (u *Unpolled) Drop(n int) {
	*u.taken -= u.Len() + n
	u.polled = u.done
}

// QueueEntries are what a completion frees when it is polled: the entry of its request, and those
// of earlier requests that had no completion.
type QueueEntries struct {
	unpolled *Unpolled // nil: none
	upTo     uint64    // requests done
}

// Free frees the entries, unless Drop has freed them. A second call does nothing. The lock of
// the queue pair must be held.
func (p *QueueEntries) Free() {
	u := p.unpolled
	if u == nil {
		return
	}
	p.unpolled = nil
	if p.upTo > u.polled {
		*u.taken -= int(p.upTo - u.polled)
		u.polled = p.upTo
	}
}
