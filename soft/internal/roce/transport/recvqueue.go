package transport

import (
	"fmt"
	"math"

	"github.com/verbena-rdma/verbena/soft/internal/roce/dma"
	"github.com/verbena-rdma/verbena/verbs"
)

// Receive is a posted receive, or several that are alike.
type Receive struct {
	id     uint64
	segs   Segments
	length uint32
	more   uint16 // further receives with this ID; none has memory
	fault  bool   // its scatter-gather list names memory that it must not use
}

// bare reports whether the receive has no memory.
func (w *Receive) bare() bool { return len(w.segs) == 0 && !w.fault }

// ID returns the ID of the receive request.
func (w *Receive) ID() uint64 { return w.id }

// Len returns how many bytes the receive takes.
func (w *Receive) Len() uint32 { return w.length }

// Fill places a message that is not longer than Len.
func (w *Receive) Fill(data []byte) verbs.Status {
	if w.fault || w.segs.Scatter(0, data) != dma.NoFault {
		return verbs.StatusLocalProtectionError
	}
	return verbs.StatusSuccess
}

// RecvQueue holds posted receives: a queue pair's own, or shared by several. Successive ones
// without memory that have the same ID take one place in the ring: a program that only counts
// messages may post many on each of thousands of queue pairs.
type RecvQueue struct {
	ring   Ring[Receive]
	depth  int
	posted int // receives in the ring
	taken  int // entries in use, including those of receives that are done: see Unpolled
	maxSGE int
	domain uint32
	memory *Memory

	shared  bool
	limit   int
	onLimit func()
}

// NewRecvQueue returns a queue for depth receives of maxSGE entries each.
func NewRecvQueue(memory *Memory, domain uint32, depth, maxSGE int) *RecvQueue {
	return &RecvQueue{ring: NewRing[Receive](depth), depth: depth, maxSGE: max(maxSGE, 1), domain: domain, memory: memory}
}

// XRCQueue is a shared receive queue of an XRC domain, with completions of its own.
type XRCQueue struct {
	*RecvQueue
	completions Completer
	unpolled    Unpolled
}

// NewXRCQueue returns a shared receive queue whose completions go to c.
func NewXRCQueue(q *RecvQueue, c Completer) *XRCQueue {
	return &XRCQueue{RecvQueue: q, completions: c, unpolled: q.Unpolled()}
}

// noReceives returns the receive queue of an XRC queue pair until a request names another.
func noReceives() *RecvQueue { return &RecvQueue{shared: true} }

// takesFrom makes the queue pair take receives from the queue of its XRC domain with that number.
// It reports false if there is none, or if a message is under way to another.
func (q *QP) takesFrom(number uint32) bool {
	x := q.xrc[number]
	if x == nil || x.RecvQueue != q.rq && (q.inReceive || q.message != noMessage) {
		return false
	}
	q.rq, q.recvCQ, q.receives, q.domain = x.RecvQueue, x.completions, &x.unpolled, x.domain
	return true
}

// QueueClosed says that a queue of the XRC domain is closed. Its receive in use is dropped.
func (q *QP) QueueClosed(x *XRCQueue) {
	if q.rq == x.RecvQueue {
		q.rq, q.inReceive = noReceives(), false
	}
}

// Share marks the queue as shared; onLimit is called when the queue falls
// below the limit set with SetLimit.
func (q *RecvQueue) Share(onLimit func()) { q.shared, q.onLimit = true, onLimit }

// Depth is the most receives that the queue holds.
func (q *RecvQueue) Depth() int { return q.depth }

// Len is the number of receives in the queue.
func (q *RecvQueue) Len() int { return q.posted }

// empty forgets all receives.
func (q *RecvQueue) empty() {
	q.ring.empty()
	q.posted = 0
}

// Full reports whether no entry is free.
func (q *RecvQueue) Full() bool { return q.taken >= q.depth }

// SetLimit arms one call of onLimit.
func (q *RecvQueue) SetLimit(n int) { q.limit = n }

// Post posts receives and returns how many were accepted.
func (q *RecvQueue) Post(wrs []verbs.RecvWR) (int, error) {
	for i := range wrs {
		wr := &wrs[i]
		if q.Full() {
			return i, fmt.Errorf("post receive %d of %d: all %d entries of the receive queue are in use; poll completions to free some: %w", i+1, len(wrs), q.Depth(), verbs.ErrQueueFull)
		}
		if len(wr.SGL) > q.maxSGE {
			return i, fmt.Errorf("post receive %d of %d: %d scatter-gather entries exceed the limit of %d: %w", i+1, len(wrs), len(wr.SGL), q.maxSGE, verbs.ErrInvalid)
		}
		q.taken++
		q.posted++
		if len(wr.SGL) == 0 && q.ring.Len() > 0 {
			if last := q.ring.last(); last.bare() && last.id == wr.ID && last.more < math.MaxUint16 {
				last.more++
				continue
			}
		}
		w := q.ring.Push()
		segs, total, ok := q.memory.Resolve(w.segs, wr.SGL, q.domain, verbs.AccessLocalWrite)
		w.id, w.segs, w.length, w.more, w.fault = wr.ID, segs, uint32(min(total, MaxMessage)), 0, !ok
	}
	return len(wrs), nil
}

// Clear forgets all receives, and frees their queue entries.
func (q *RecvQueue) Clear() {
	q.empty()
	q.taken = 0
}

// Unpolled returns a count for receives of the queue.
func (q *RecvQueue) Unpolled() Unpolled { return NewUnpolled(&q.taken) }

// Take moves the oldest receive to w, and reports false if there is none. The arrays of segments of w
// and of the place are swapped, so that nothing is allocated or copied.
func (q *RecvQueue) Take(w *Receive) bool {
	if q.posted == 0 {
		return false
	}
	q.posted--
	if first := q.ring.First(); first.more > 0 {
		first.more--
		*w = Receive{id: first.id, segs: w.segs[:0]}
	} else {
		place := q.ring.Pop()
		*w, *place = *place, Receive{segs: w.segs[:0]}
	}
	if q.limit > 0 && q.Len() < q.limit {
		q.limit = 0
		if q.onLimit != nil {
			q.onLimit()
		}
	}
	return true
}
