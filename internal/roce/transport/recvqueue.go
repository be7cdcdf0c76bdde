package transport

import (
	"fmt"

	"github.com/verbena-rdma/verbena/verbs"
)

// recvWQE is a posted receive.
type recvWQE struct {
	id     uint64
	segs   []segment
	length uint32
	fault  bool // its scatter-gather list named memory it must not
}

// RecvQueue holds posted receives: a queue pair's own, or shared by several.
type RecvQueue struct {
	ring   []recvWQE
	head   uint64 // next to be consumed
	tail   uint64 // next to be posted
	maxSGE int
	domain uint32
	memory *Memory

	shared  bool
	limit   int
	onLimit func()
}

// NewRecvQueue returns a queue for depth receives of maxSGE entries each.
func NewRecvQueue(memory *Memory, domain uint32, depth, maxSGE int) *RecvQueue {
	maxSGE = max(maxSGE, 1)
	q := &RecvQueue{ring: make([]recvWQE, depth), maxSGE: maxSGE, domain: domain, memory: memory}
	segs := make([]segment, depth*maxSGE)
	for i := range q.ring {
		q.ring[i].segs = segs[i*maxSGE : i*maxSGE : (i+1)*maxSGE]
	}
	return q
}

// Share marks the queue as shared; onLimit is called when the queue falls
// below the limit set with SetLimit.
func (q *RecvQueue) Share(onLimit func()) { q.shared, q.onLimit = true, onLimit }

// SetLimit arms one call of onLimit.
func (q *RecvQueue) SetLimit(n int) { q.limit = n }

// Len is the number of receives posted and not consumed.
func (q *RecvQueue) Len() int { return int(q.tail - q.head) }

// Post posts receives and returns how many were taken.
func (q *RecvQueue) Post(wrs []verbs.RecvWR) (int, error) {
	for i := range wrs {
		wr := &wrs[i]
		if q.Len() == len(q.ring) {
			return i, fmt.Errorf("post receive %d of %d: all %d places are taken: %w", i+1, len(wrs), len(q.ring), verbs.ErrQueueFull)
		}
		if len(wr.SGL) > q.maxSGE {
			return i, fmt.Errorf("post receive %d of %d: %d scatter-gather entries, %d allowed: %w", i+1, len(wrs), len(wr.SGL), q.maxSGE, verbs.ErrInvalid)
		}
		w := &q.ring[q.tail%uint64(len(q.ring))]
		segs, total, ok := q.memory.resolve(w.segs[:0], wr.SGL, q.domain, verbs.AccessLocalWrite)
		w.id, w.segs, w.length, w.fault = wr.ID, segs, uint32(min(total, maxMessage)), !ok
		q.tail++
	}
	return len(wrs), nil
}

// take consumes the oldest receive into w, whose segments' array is swapped
// with the ring's so that nothing is allocated or copied.
func (q *RecvQueue) take(w *recvWQE) bool {
	if q.head == q.tail {
		return false
	}
	slot := &q.ring[q.head%uint64(len(q.ring))]
	*w, *slot = *slot, recvWQE{segs: w.segs[:0]}
	q.head++
	if q.limit > 0 && q.Len() < q.limit {
		q.limit = 0
		if q.onLimit != nil {
			q.onLimit()
		}
	}
	return true
}
