package receiving

import (
	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/rdma/internal/buffers"
	"github.com/verbena-rdma/verbena/verbs"
)

// Queue is the receive queue of one connection.
type Queue struct {
	Owner   QueueOwner
	all     *Receives
	lane    *lane.Lane
	number  int
	posted  fifo.List[*Receive] // of all receives
	place   fifo.Node[*Queue]   // among those that have room for more
	started bool                // it takes receives
	held    bool

	// id is that of all receives posted to the queue pair; a later queue pair has another. A queue
	// pair completes receives in the order in which they were posted.
	id uint64

	// Of a connection that has receives of its own. They are alike but for their buffers, so counts
	// are enough to know which buffer a completion is about.
	next    int // the buffer of the next to be posted
	done    int // the buffer of the next to complete
	taken   int // completed and not reposted: the program may read their buffers, the last before done
	buffers buffers.Buffers
}

// QueueOwner is the connection that a queue belongs to.
type QueueOwner interface {
	// RefillFailed is called when the device has refused a receive. The queue takes no more.
	RefillFailed(err error)
}

// ownReceives are receives that each connection has for itself.
type ownReceives struct {
	n     int // zero: receives are for all connections
	size  int // of a buffer; zero: none have one
	owner Owner
}

// The ID of the receives of a queue is lane.ReceiveID, the number of the queue, and a number that
// tells them from those of every other queue pair that the queue has had.
const (
	numberBits = 16
	numberMask = MaxQueues - 1
	useMask    = 1<<(63-numberBits) - 1
	// MaxQueues is the most queues of one context.
	MaxQueues = 1 << numberBits
)

// SetEach gives each connection n receives of its own, with buffers of size bytes. There are no
// others then.
func (r *Receives) SetEach(n, size int, owner Owner) {
	r.each = ownReceives{n: n, size: size, owner: owner}
}

// Each is the number of receives that each connection has for itself.
func (r *Receives) Each() int { return r.each.n }

// QueueSize is the size of the receive queue that each connection has; zero: none has one. No
// other connection can use that part of the receives.
func (r *Receives) QueueSize() int {
	switch {
	case r.each.n > 0:
		return r.each.n
	case r.cfg.Shared || r.total == 0:
		return 0
	}
	return r.cfg.Depth / r.cfg.Connections
}

// Open makes the buffers, if the connection has receives of its own. The number is below MaxQueues,
// and that of no other queue. The lane need not be connected. If Open fails, Close is
// called all the same.
func (q *Queue) Open(all *Receives, number int, l *lane.Lane) error {
	q.all, q.number, q.lane, q.place.Value = all, number, l, q
	if all.QueueSize() == 0 {
		return nil
	}
	for len(all.queues) <= number {
		all.queues = append(all.queues, nil)
	}
	all.queues[number] = q
	q.renewID()
	return q.buffers.Open(all.cfg.PD, all.each.n, all.each.size, align)
}

// Close frees the buffers, unless keep is set: the device may still use them.
func (q *Queue) Close(keep bool) error {
	if q.number < len(q.all.queues) {
		q.all.queues[q.number] = nil
	}
	return q.buffers.Close(keep)
}

// SetLane gives the queue another queue pair. Return is called when the former was destroyed.
func (q *Queue) SetLane(l *lane.Lane) { q.lane = l }

// Start lets the queue take receives. The queue pair must accept them, and not be able to receive
// messages yet.
func (q *Queue) Start() {
	q.started = q.all.QueueSize() > 0 && q.all.up
	q.Refill()
}

// Stop undoes Start.
func (q *Queue) Stop() {
	q.started = false
	q.all.toRefill.Remove(&q.place)
}

// Hold makes the queue take no receives until Resume.
func (q *Queue) Hold() {
	q.held = true
	q.all.toRefill.Remove(&q.place)
}

// Resume undoes Hold.
func (q *Queue) Resume() {
	q.held = false
	q.Refill()
}

// Refill lists the queue to be given receives, if it has room for them.
func (q *Queue) Refill() {
	if q.started && !q.held && !q.place.Queued() && q.len() < q.all.QueueSize() {
		q.all.toRefill.Push(&q.place)
	}
}

// len is how many receives the queue holds, with those whose buffers the program may read.
func (q *Queue) len() int {
	if q.all.each.n > 0 {
		return q.lane.Receives() + q.taken
	}
	return q.posted.Len()
}

// refill posts receives: those of the connection's own, or its part of the waiting ones. The queue
// then goes to the back of the list, so that all get receives in turn.
func (q *Queue) refill() {
	r := q.all
	var err error
	if r.each.n > 0 {
		err = q.postOwn()
	} else {
		part := (r.waiting.Len() + r.toRefill.Len()) / (r.toRefill.Len() + 1) // rounded up
		_, err = r.postSome(q.lane.QP(), min(part, r.QueueSize()-q.posted.Len()), q)
	}
	if err != nil {
		q.started = false
		q.Owner.RefillFailed(err)
		return
	}
	q.Refill()
}

// postOwn posts the receives of its own that the connection lacks.
func (q *Queue) postOwn() error {
	r := q.all
	for missing := r.each.n - q.len(); missing > 0; missing = r.each.n - q.len() {
		n := min(missing, lane.PostBatch)
		for i := range n {
			wr := &r.wrs[i]
			*wr = verbs.RecvWR{ID: q.id}
			if r.each.size > 0 {
				r.sges[i] = q.buffers.SGE((q.next + i) % r.each.n)
				wr.SGL = r.sges[i : i+1]
			}
		}
		taken, err := q.lane.PostRecv(r.wrs[:n])
		q.next = (q.next + taken) % r.each.n
		if err != nil {
			return err
		}
	}
	return nil
}

// takeOfQueue is Take for the queue of a connection.
func (r *Receives) takeOfQueue(wc *verbs.WC) (t Taken, ok bool) {
	number := int(wc.ID & numberMask)
	if number >= len(r.queues) || r.queues[number] == nil || r.queues[number].id != wc.ID {
		return Taken{}, false
	}
	q := r.queues[number]
	if r.each.n == 0 {
		if q.posted.Len() == 0 {
			return Taken{}, false
		}
		return r.take(q.posted.Front().Value), true
	}
	t = Taken{Owner: r.each.owner, Queue: q, buffers: &q.buffers, buffer: q.done, id: q.id}
	q.done = (q.done + 1) % r.each.n
	q.taken++
	q.lane.Received()
	return t, true
}

// Return gives the receives of a queue pair that was reset or destroyed to other connections,
// unless they are the connection's own. Their later completions are ignored.
func (q *Queue) Return() {
	q.Stop()
	q.renewID()
	for e := q.posted.Front(); e != nil; e = q.posted.Front() {
		q.all.returned(e.Value)
		q.all.Push(e.Value)
	}
}

// renewID makes completions of the receives posted so far be ignored.
func (q *Queue) renewID() {
	q.all.uses++
	q.next, q.done, q.taken = 0, 0, 0
	q.id = lane.ReceiveID | q.all.uses&useMask<<numberBits | uint64(q.number)
}
