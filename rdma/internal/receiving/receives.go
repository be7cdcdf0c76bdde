// Package receiving posts the receives of a context, and knows which of them a completion is
// about. It knows neither connections nor tasks.
//
// Receives go to one queue, which is a shared receive queue or that of the one queue pair, or to
// the queue pairs of connections, each with its Queue: then the context distributes its receives
// among them, or each has receives of its own. Everything runs on the engine's goroutine.
package receiving

import (
	"errors"
	"fmt"
	"math"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/rdma/internal/buffers"
	"github.com/verbena-rdma/verbena/verbs"
)

// Receives are the receives of a context.
type Receives struct {
	list     []*Receive // without those that each connection has for itself
	total    int        // with those that no pool has made yet
	buffered []buffered // of list
	size     int        // of a buffer; zero: none have one
	each     ownReceives
	uses     uint64 // of queue pairs, by queues, so far

	// The fields below belong to one run, from Open to Close.
	cfg      Config
	up       bool                // receives are posted
	srq      verbs.SRQ           // nil: there is none
	queue    receiveQueue        // nil: each connection has its own, or there are no receives
	queues   []*Queue            // by number
	headers  buffers.Buffers     // of the messages of UD, by the index of the receive
	buffers  buffers.Buffers     // of buffered
	waiting  fifo.List[*Receive] // in order, to be posted
	toRefill fifo.List[*Queue]   // with room for receives
	posted   int                 // of list
	wrs      [lane.PostBatch]verbs.RecvWR
	sges     [lane.PostBatch]verbs.SGE
	flushed  int // of list, when the context stops
}

// Config is what receives need in one run.
type Config struct {
	PD verbs.PD
	// Depth is the most receives that are at the device.
	Depth int
	// Connections is the most that share the receives, if each has its own queue.
	Connections int
	// Shared: a shared receive queue is made, with so many entries in a list of buffers, and the
	// engine that polls it.
	Shared bool
	MaxSGE int
	Poller any
	// Headers: messages come with the header of UD.
	Headers bool
}

// Receive is one receive of a context, for any of its connections. It can be posted again and
// again.
type Receive struct {
	SGL    []verbs.SGE // where the next message goes
	owner  Owner
	index  int                 // among the receives of the context, which is its ID
	buffer int                 // that belongs to it, if it is of AddBuffered
	place  fifo.Node[*Receive] // in waiting of the context, or in posted of queue
	posted bool
	queue  *Queue // that it was posted to; nil: the one queue
}

// buffered is a receive with a buffer of the context's own.
type buffered struct {
	Receive
	sge [2]verbs.SGE // for the header, if there is one, and the buffer
}

// Owner is what a receive belongs to.
type Owner interface {
	// Flushed is called for every receive when all queues have been destroyed, or could not be.
	// posted says whether it was at the device. Flushed returns how many callbacks it ran.
	Flushed(posted bool) int
}

// align is the alignment of buffers: no two share a cache line.
const align = 64

// Possible reports whether there can be n buffers of size bytes.
func Possible(n, size int) bool {
	return size >= 0 && size <= math.MaxInt32 && (size == 0 || n <= math.MaxInt/buffers.Stride(size, align))
}

// receiveQueue is where receives are posted: a shared receive queue, or a queue pair.
type receiveQueue interface {
	PostRecv(wrs []verbs.RecvWR) (int, error)
}

// Reserve says that there will be n more receives, of Add.
func (r *Receives) Reserve(n int) { r.total += n }

// Total is the number of receives, without those that each connection has for itself.
func (r *Receives) Total() int { return r.total }

// Add registers a receive for good.
func (r *Receives) Add(one *Receive, owner Owner) {
	one.owner, one.place.Value, one.index = owner, one, len(r.list)
	r.list = append(r.list, one)
}

// AddBuffered makes n receives, each with a buffer of size bytes. In every run they are posted
// from the beginning.
func (r *Receives) AddBuffered(n, size int, owner Owner) {
	r.buffered, r.size = make([]buffered, n), size
	for i := range r.buffered {
		r.buffered[i].buffer = i
		r.Add(&r.buffered[i].Receive, owner)
	}
	r.Reserve(n)
}

// Open begins a run. If it fails, Close is called all the same.
func (r *Receives) Open(cfg Config) (err error) {
	r.cfg, r.up, r.posted, r.flushed = cfg, true, 0, 0
	if r.total == 0 { // there are none, or each connection has its own
		return nil
	}
	if cfg.Headers {
		if err := r.headers.Open(cfg.PD, r.total, verbs.GRHLen, align); err != nil {
			return fmt.Errorf("allocate memory for the headers of %d receives: %w", r.total, err)
		}
	}
	if cfg.Shared {
		if r.srq, err = cfg.PD.CreateSRQ(verbs.SRQInit{MaxWR: cfg.Depth, MaxSGE: cfg.MaxSGE, Poller: cfg.Poller}); err != nil {
			return fmt.Errorf("create a shared receive queue of %d receives on %s: %w", cfg.Depth, cfg.PD.Device().Name(), err)
		}
		r.queue = r.srq
	}
	if err := r.buffers.Open(cfg.PD, len(r.buffered), r.size, align); err != nil {
		return err
	}
	for i := range r.buffered {
		b := &r.buffered[i]
		b.SGL = r.AppendHeader(b.sge[:0], &b.Receive)
		if r.size > 0 {
			b.SGL = append(b.SGL, r.buffers.SGE(i))
		}
		r.Push(&b.Receive)
	}
	return nil
}

// PostTo makes a queue pair the one queue.
func (r *Receives) PostTo(qp verbs.QP) { r.queue = qp }

// SRQ is the shared receive queue, or nil.
func (r *Receives) SRQ() verbs.SRQ { return r.srq }

// AppendHeader appends the entry for the header of a receive, if messages come with one.
func (r *Receives) AppendHeader(sgl []verbs.SGE, one *Receive) []verbs.SGE {
	if !r.headers.IsOpen() {
		return sgl
	}
	return append(sgl, r.headers.SGE(one.index))
}

// Header is the memory for the header of a receive.
func (r *Receives) Header(one *Receive) []byte { return r.headers.Bytes(one.index, verbs.GRHLen) }

// Push makes a receive wait to be posted.
func (r *Receives) Push(one *Receive) { r.waiting.Push(&one.place) }

// Busy reports whether a receive waits, and there is room for it.
func (r *Receives) Busy() bool {
	waiting := r.waiting.Len() > 0 && r.posted < r.cfg.Depth
	return r.up && (waiting && r.queue != nil || r.toRefill.Len() > 0 && (waiting || r.each.n > 0))
}

// Post posts waiting receives while there is room. The error is that of the one queue.
func (r *Receives) Post() error {
	for r.Busy() {
		if r.queue == nil {
			r.toRefill.Pop().Value.refill()
			continue
		}
		if _, err := r.postSome(r.queue, lane.PostBatch, nil); err != nil {
			return err
		}
	}
	return nil
}

// postSome posts the first receives that wait: to the queue of a connection, or to the one queue
// if q is nil. It returns how many the device has taken.
func (r *Receives) postSome(to receiveQueue, most int, q *Queue) (int, error) {
	n := 0
	for e := r.waiting.Front(); e != nil && n < min(most, lane.PostBatch, r.cfg.Depth-r.posted); e = e.Next() {
		id := lane.ReceiveID | uint64(e.Value.index)
		if q != nil {
			id = q.id
		}
		r.wrs[n] = verbs.RecvWR{ID: id, SGL: e.Value.SGL}
		n++
	}
	taken, err := to.PostRecv(r.wrs[:n])
	for range taken {
		one := r.waiting.Pop().Value
		one.posted, one.queue = true, q
		if q != nil {
			q.posted.Push(&one.place)
		}
	}
	r.posted += taken
	return taken, err
}

// returned notes that the device no longer has a receive.
func (r *Receives) returned(one *Receive) {
	one.posted = false
	r.posted--
	if q := one.queue; q != nil {
		one.queue = nil
		q.posted.Remove(&one.place)
		q.Refill()
	}
}

// Taken is a receive that has completed.
type Taken struct {
	Owner   Owner
	Receive *Receive // nil: it is one of those that a connection has for itself
	Queue   *Queue   // of the connection that it was posted to; nil: it was the one queue
	buffers *buffers.Buffers
	buffer  int
	id      uint64 // of the queue's receives then
}

// Bytes are the first n bytes of the context's own buffer for the message.
func (t *Taken) Bytes(n int) []byte { return t.buffers.Bytes(t.buffer, n) }

// Take returns the receive that a completion is about. ok is false if the receive was returned
// already, since its queue pair was reset or destroyed.
func (r *Receives) Take(wc *verbs.WC) (t Taken, ok bool) {
	if r.queue == nil {
		return r.takeOfQueue(wc)
	}
	i := wc.ID &^ lane.ReceiveID
	if i >= uint64(len(r.list)) || !r.list[i].posted {
		return Taken{}, false
	}
	return r.take(r.list[i]), true
}

// take takes a receive that has completed.
func (r *Receives) take(one *Receive) Taken {
	t := Taken{Owner: one.owner, Receive: one, Queue: one.queue, buffers: &r.buffers, buffer: one.buffer}
	r.returned(one)
	return t
}

// Repost makes a receive wait again, unless its connection takes no more. The device may then write to
// the buffer of the message.
func (r *Receives) Repost(t Taken) {
	switch q := t.Queue; {
	case t.Receive != nil:
		r.Push(t.Receive)
	case t.id == q.id:
		q.taken--
		q.Refill()
	}
}

// Stop ends the posting of receives.
func (r *Receives) Stop() { r.up = false }

// CloseShared destroys the shared receive queue.
func (r *Receives) CloseShared() error {
	if r.srq == nil {
		return nil
	}
	err := r.srq.Close()
	r.srq = nil
	return err
}

// Flush ends some of the receives when no queue is left. It returns how many callbacks that took,
// and whether it has ended all.
func (r *Receives) Flush() (n int, all bool) {
	for ; r.flushed < len(r.list) && n < lane.PollBudget; r.flushed++ {
		one := r.list[r.flushed]
		r.waiting.Remove(&one.place)
		posted := one.posted
		if one.queue != nil { // its queue pair could not be destroyed
			one.queue.posted.Remove(&one.place)
			one.queue = nil
		}
		one.posted = false
		n += one.owner.Flushed(posted)
	}
	return n, r.flushed == len(r.list)
}

// Close ends the run. The memory stays open if keep is set: the device may still use it.
func (r *Receives) Close(keep bool) error {
	for r.toRefill.Pop() != nil {
	}
	for r.waiting.Pop() != nil {
	}
	r.up, r.queue, r.queues = false, nil, nil
	return errors.Join(r.CloseShared(), r.buffers.Close(keep), r.headers.Close(keep))
}
