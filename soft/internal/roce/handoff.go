package roce

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
)

// handoffQueue holds what other shards hand to this one. Mostly these are packets: the system
// steers packets by queue pair number, but some systems do not, and packets that an adapter
// has joined to one train all go to the shard of the first.
type handoffQueue struct {
	waiting atomic.Bool

	mu      sync.Mutex // no other lock is taken under it
	items   []handoff
	packets int
	bytes   int    // of the packets' data
	total   uint64 // packets received
	dropped uint64 // packets dropped for lack of room
}

// handoff is one of: a packet from a socket, the report of an unreachable peer, or a
// function to call.
type handoff struct {
	endpoint    int // index of the endpoint that it came to
	datagram    link.Datagram
	unreachable *link.Refusal
	call        func(now time.Duration)
}

// maxHandoffPackets and maxHandoffBytes bound the waiting packets, as a socket's buffer would.
const (
	maxHandoffPackets = 1024
	maxHandoffBytes   = 4 << 20
)

// enqueuePacket queues a packet that another shard has received. It copies the data. The lock of
// the other shard is held.
func (s *shard) enqueuePacket(x handoff) {
	t := &s.handoffs
	size := len(x.datagram.Data)
	t.mu.Lock()
	t.total++
	if t.packets >= maxHandoffPackets || t.bytes+size > maxHandoffBytes {
		t.dropped++
		t.mu.Unlock()
		return
	}
	x.datagram.Data = slices.Clone(x.datagram.Data)
	t.packets, t.bytes = t.packets+1, t.bytes+size
	s.appendHandoff(x)
}

// enqueue queues x, which another shard hands over. The lock of the other shard is held.
func (s *shard) enqueue(x handoff) {
	s.handoffs.mu.Lock()
	s.appendHandoff(x)
}

// appendHandoff appends an item, unlocks the queue and wakes the shard. The queue's lock is held.
func (s *shard) appendHandoff(x handoff) {
	t := &s.handoffs
	t.items = append(t.items, x)
	first := !t.waiting.Swap(true)
	t.mu.Unlock()
	if first {
		s.wake()
	}
}

// handleHandoffs handles the items of the handoff queue, and reports whether there were any.
func (s *shard) handleHandoffs(now time.Duration) bool {
	t := &s.handoffs
	t.mu.Lock()
	items := t.items
	t.items, t.packets, t.bytes = nil, 0, 0
	t.waiting.Store(false)
	t.mu.Unlock()
	for i := range items {
		x := &items[i]
		switch e := s.endpoints[x.endpoint]; {
		case x.call != nil:
			x.call(now)
		case x.unreachable != nil:
			s.mu.unreachable.add(e, x.unreachable)
		default:
			e.handle(&x.datagram, now)
		}
	}
	return len(items) > 0
}

// forwardReports passes reports of unreachable peers to the other shards: the system reports a
// peer to any one of the sockets of an address.
func (s *shard) forwardReports(e *endpoint, reports []link.Refusal) {
	for _, other := range s.device.mu.list {
		if other == s {
			continue
		}
		for _, report := range reports {
			other.enqueue(handoff{endpoint: e.index, unreachable: &report})
		}
	}
}
