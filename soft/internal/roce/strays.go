package roce

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/dma"
	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

// strays are what sockets of other shards have received for this one. The system steers
// packets by the number of their queue pair, but a queue pair may have moved, and packets
// that adapters have joined to one train go where its first does.
type strays struct {
	waiting atomic.Bool

	mu      sync.Mutex
	list    []stray
	bytes   int    // of their data
	passed  uint64 // those that came
	dropped uint64 // for want of room
}

// stray is a packet, or the report that a peer cannot be reached.
type stray struct {
	endpoint    int // index of the one that it came to
	datagram    link.Datagram
	shared      *sharedPacket  // not nil: it is that, which has come through shared memory
	unreachable netip.AddrPort // valid: it is a report
}

// sharedPacket is a packet that has come through shared memory.
type sharedPacket struct {
	from    netip.AddrPort
	headers wire.Packet
	pieces  [][]byte
	intact  func() bool // local.Packet.Intact, until the pieces are copied
}

// maxStrays and maxStrayBytes are how many wait at most, as in a socket's buffer.
const (
	maxStrays     = 1024
	maxStrayBytes = 4 << 20
)

// take takes what another shard has received. It copies the data. The lock of the shard
// need not be held, and that of the other one is.
func (s *shard) take(x stray) {
	t := &s.strays
	size := len(x.datagram.Data)
	if x.shared != nil {
		for _, piece := range x.shared.pieces {
			size += len(piece)
		}
	}
	t.mu.Lock()
	if !x.unreachable.IsValid() {
		t.passed++
	}
	if len(t.list) >= maxStrays || t.bytes+size > maxStrayBytes {
		t.dropped++
		t.mu.Unlock()
		return
	}
	x.datagram.Data = slices.Clone(x.datagram.Data)
	if x.shared != nil {
		whole, readable := concatenated(x.shared.pieces, size)
		if x.shared.intact != nil && !x.shared.intact() || !readable {
			t.mu.Unlock()
			return
		}
		x.shared.pieces = [][]byte{whole}
		x.shared.intact = nil
	}
	t.list, t.bytes = append(t.list, x), t.bytes+size
	first := !t.waiting.Swap(true)
	t.mu.Unlock()
	if first {
		s.endpoints[x.endpoint].socket.Interrupt()
	}
}

// concatenated is a copy of all pieces, together so long, or false if they cannot be read.
func concatenated(pieces [][]byte, size int) ([]byte, bool) {
	whole := make([]byte, size)
	at := whole
	for _, piece := range pieces {
		if dma.Copy(at[:len(piece)], piece) != dma.NoFault {
			return nil, false
		}
		at = at[len(piece):]
	}
	return whole, true
}

// handleStrays handles what has been taken, and reports whether there was anything.
func (s *shard) handleStrays(now time.Duration) bool {
	t := &s.strays
	t.mu.Lock()
	list := t.list
	t.list, t.bytes = nil, 0
	t.waiting.Store(false)
	t.mu.Unlock()
	for i := range list {
		x := &list[i]
		switch e := s.endpoints[x.endpoint]; {
		case x.unreachable.IsValid():
			s.unreachable.add(unreachablePeer{e, x.unreachable})
		case x.shared != nil:
			e.handleShared(x.shared.from, &x.shared.headers, x.shared.pieces, nil, now)
		default:
			e.handle(&x.datagram, now)
		}
	}
	return len(list) > 0
}

// passReports has the other shards know of peers that cannot be reached: the system reports
// them to any of the sockets of an address.
func (s *shard) passReports(e *endpoint, peers []netip.AddrPort) {
	for _, other := range s.device.mu.list {
		if other == s {
			continue
		}
		for _, peer := range peers {
			other.take(stray{endpoint: e.index, unreachable: peer})
		}
	}
}

// ownerOf is the shard that a packet is for: that of its queue pair, or the first.
func (s *shard) ownerOf(q *queuePair) *shard {
	if q == nil {
		return s.device.main
	}
	return q.shard.Load()
}
