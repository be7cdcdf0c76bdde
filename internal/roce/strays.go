package roce

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/internal/roce/link"
	"github.com/verbena-rdma/verbena/internal/roce/local"
	"github.com/verbena-rdma/verbena/internal/roce/wire"
)

// strays are what sockets of other shards have received for this one. The system steers
// packets by the number of their queue pair, but a queue pair may have moved, and packets
// that adapters have joined to one train go where its first does.
type strays struct {
	waiting atomic.Bool

	mu      sync.Mutex
	list    []stray
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
	payload []byte
}

// strayOf copies a packet from a peer.
func strayOf(p *localPeer, packet *local.Packet) stray {
	return stray{endpoint: p.endpoint.index, shared: &sharedPacket{
		from: p.ends.Peer.Device, headers: packet.Packet, payload: slices.Concat(packet.Pieces...),
	}}
}

// maxStrays is how many wait at most, as in a socket's buffer.
const maxStrays = 1024

// take takes what another shard has received. It copies the data. The lock of the shard
// need not be held, and that of the other one is.
func (s *shard) take(x stray) {
	t := &s.strays
	t.mu.Lock()
	full := len(t.list) >= maxStrays
	if !x.unreachable.IsValid() {
		t.passed++
	}
	if full {
		t.dropped++
	} else {
		x.datagram.Data = slices.Clone(x.datagram.Data)
		t.list = append(t.list, x)
	}
	first := !full && !t.waiting.Swap(true)
	t.mu.Unlock()
	if first {
		s.endpoints[x.endpoint].socket.Interrupt()
	}
}

// handleStrays handles what has been taken, and reports whether there was anything.
func (s *shard) handleStrays(now time.Duration) bool {
	t := &s.strays
	t.mu.Lock()
	list := t.list
	t.list = nil
	t.waiting.Store(false)
	t.mu.Unlock()
	for i := range list {
		x := &list[i]
		e := s.endpoints[x.endpoint]
		if x.unreachable.IsValid() {
			s.unreachable.add(unreachablePeer{e, x.unreachable})
			continue
		}
		if x.shared != nil {
			e.handleShared(x.shared, now)
			continue
		}
		e.handle(&x.datagram, now)
	}
	return len(list) > 0
}

// handleShared takes a packet that has come through shared memory to another shard.
func (e *endpoint) handleShared(x *sharedPacket, now time.Duration) {
	s := e.shard
	q := e.find(x.headers.DestQP)
	if q == nil || q.shard.Load() != s || !q.takesLocal(e, x.from, x.headers.PKey) {
		s.drops.wrongPeer++
		return
	}
	s.counters.ReceivedPackets++
	s.local.received++
	q.transport.ReceivePieces(&x.headers, [][]byte{x.payload}, now)
	s.activate(q)
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
