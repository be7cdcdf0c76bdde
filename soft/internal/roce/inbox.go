package roce

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
)

// inbox holds what other shards hand to this one. Mostly these are packets: the system steers
// packets by the number of their queue pair, but some systems do not, and packets that adapters
// have joined to one train all go where its first does.
type inbox struct {
	waiting atomic.Bool

	mu      sync.Mutex // no other lock is taken under it
	items   []handedOver
	packets int
	bytes   int    // of their data
	total   uint64 // packets that came
	dropped uint64 // of them, since there was no room
}

// handedOver is one of: a packet from a socket, the report that a peer cannot be reached, a function
// to be called.
type handedOver struct {
	endpoint    int // index of the one that it came to
	datagram    link.Datagram
	unreachable netip.AddrPort
	call        func(now time.Duration)
}

// maxInboxPackets and maxInboxBytes are how many packets wait at most, as in a socket's buffer.
const (
	maxInboxPackets = 1024
	maxInboxBytes   = 4 << 20
)

// takePacket takes a packet that another shard has received. It copies the data. The lock of the
// other shard is held.
func (s *shard) takePacket(x handedOver) {
	t := &s.inbox
	size := len(x.datagram.Data)
	t.mu.Lock()
	t.total++
	if t.packets >= maxInboxPackets || t.bytes+size > maxInboxBytes {
		t.dropped++
		t.mu.Unlock()
		return
	}
	x.datagram.Data = slices.Clone(x.datagram.Data)
	t.packets, t.bytes = t.packets+1, t.bytes+size
	s.add(x)
}

// take takes what another shard hands over. Its lock is held.
func (s *shard) take(x handedOver) {
	s.inbox.mu.Lock()
	s.add(x)
}

// add adds an item, gives the inbox's lock back and wakes the shard.
func (s *shard) add(x handedOver) {
	t := &s.inbox
	t.items = append(t.items, x)
	first := !t.waiting.Swap(true)
	t.mu.Unlock()
	if first {
		s.endpoints[x.endpoint].socket.Interrupt()
	}
}

// handleInbox handles what has been handed over, and reports whether there was anything.
func (s *shard) handleInbox(now time.Duration) bool {
	t := &s.inbox
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
		case x.unreachable.IsValid():
			s.unreachable.add(unreachablePeer{e, x.unreachable})
		default:
			e.handle(&x.datagram, now)
		}
	}
	return len(items) > 0
}

// passReports tells the other shards of peers that cannot be reached: the system reports them to
// any of the sockets of an address.
func (s *shard) passReports(e *endpoint, peers []netip.AddrPort) {
	for _, other := range s.device.mu.list {
		if other == s {
			continue
		}
		for _, peer := range peers {
			other.take(handedOver{endpoint: e.index, unreachable: peer})
		}
	}
}
