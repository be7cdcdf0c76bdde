package transport

import (
	"slices"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/soft/internal/roce/dma"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// grant returns the memory that a key lets the peer of a queue pair use, for the n bytes from
// addr on. It reports false if key, domain, bounds or access are wrong.
func (m *Memory) grant(q *QP, key uint32, addr uint64, n uint32, access verbs.Access) (grant, bool) {
	return m.grantIn(q.domain, q, key, addr, n, access)
}

// grantIn is grant for a domain. q is nil if it cannot have windows of type 2.
func (m *Memory) grantIn(domain uint32, q *QP, key uint32, addr uint64, n uint32, access verbs.Access) (grant, bool) {
	if r := m.regions[key]; r != nil {
		if r.Domain != domain || r.Access&access != access {
			return grant{}, false
		}
		_, ok := r.Place(addr, n)
		return grant{region: r, addr: addr}, ok
	}
	w := m.windows[tag(key)]
	if w == nil {
		return grant{}, false
	}
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.key != key || w.region == nil || w.Domain != domain || w.access&access != access {
		return grant{}, false
	}
	if w.Type == verbs.MWType2 && w.qp != q {
		return grant{}, false
	}
	off := addr
	if !w.zeroBased {
		off -= w.addr // wraps around to a huge value below the window
	}
	if off > w.length || uint64(n) > w.length-off {
		return grant{}, false
	}
	return grant{region: w.region, window: w, binds: w.binds, addr: w.addr + off}, true
}

// grant is memory that a peer may use.
type grant struct {
	region *Region // nil: no bytes
	window *Window // nil: the region's own key grants it
	binds  uint64  // of the window
	addr   uint64  // of the next byte, in the region
}

// acquire reports whether the grant is still valid, and keeps it so until release.
func (g *grant) acquire() bool {
	if g.region.closed {
		return false
	}
	if g.window == nil {
		return true
	}
	g.window.mu.RLock()
	if g.window.binds == g.binds {
		return true
	}
	g.window.mu.RUnlock()
	return false
}

// release ends acquire.
func (g *grant) release() {
	if g.window != nil {
		g.window.mu.RUnlock()
	}
}

// faultNak is the code of a NAK to a request for memory that cannot be accessed.
func (g *grant) faultNak() wire.NakCode {
	if g.region.OnDemand() {
		return wire.NakRemoteAccess
	}
	return wire.NakRemoteOperation
}

// read returns the next n bytes for an Output, or false if they have been taken away. A window
// of type 1 can be taken away under another lock than that of the Output, so read copies its
// bytes to bounce. All other memory is taken away under the same lock. Memory on demand is copied too, and
// f is the fault if it cannot be read; for other memory, the Output meets the fault.
func (g *grant) read(n uint32, bounce *[]byte) (b []byte, ok bool, f dma.Fault) {
	place, inside := g.region.Place(g.addr, n)
	if !inside || !g.acquire() {
		return nil, false, dma.NoFault
	}
	defer g.release()
	if g.region.OnDemand() {
		*bounce = slices.Grow((*bounce)[:0], int(n))[:n]
		return *bounce, true, place.Read(*bounce)
	}
	b, _ = g.region.slice(g.addr, n)
	if g.window == nil || g.window.Type == verbs.MWType2 {
		return b, true, dma.NoFault
	}
	*bounce = slices.Grow((*bounce)[:0], len(b))[:len(b)]
	if dma.Copy(*bounce, b) != dma.NoFault {
		return b, true, dma.NoFault
	}
	return *bounce, true, dma.NoFault
}

// KeyGuard bounds how many keys the host of a peer can try. A refusal ends a connection,
// but the next connection is cheap.
type KeyGuard interface {
	// Admits reports whether the host may use a key that its queue pair was not granted
	// before. If not, the request is dropped as if it had been lost, and the peer repeats it.
	Admits() bool
	// Refused notes that a key granted less than a request wanted.
	Refused()
}

// keys are the remote keys that a queue pair knows.
type keys struct {
	windows     fifo.List[*Window] // of type 2, bound on it
	expectedKey uint32             // set by ExpectKey
	granted     GrantedKeys
}

// GrantedKeys are the remote keys that a peer has recently used with success. To use them
// again is no guess, whatever other programs of its host do.
type GrantedKeys struct {
	last uint32 // the key added last
	keys [8]uint32
	next uint8
}

// Has reports whether the key is one of them.
func (g *GrantedKeys) Has(key uint32) bool { return key == g.last || slices.Contains(g.keys[:], key) }

// Add remembers a key.
func (g *GrantedKeys) Add(key uint32) {
	if key == g.last {
		return
	}
	g.last = key
	if !slices.Contains(g.keys[:], key) {
		g.keys[g.next%uint8(len(g.keys))] = key
		g.next++
	}
}

// AddRange remembers the key of a range of memory. The key of an empty range was not checked.
func (g *GrantedKeys) AddRange(h *wire.RETH) {
	if h.Length > 0 {
		g.Add(h.RKey)
	}
}

// admits reports whether a request may use a key. If it may not, its later packets do not
// count as a gap: the peer gets no NAK for them.
func (q *QP) admits(key uint32) bool {
	if q.guard == nil || key == q.expectedKey || q.granted.Has(key) || q.guard.Admits() {
		return true
	}
	q.counters.AccessesLimited++
	q.nakSent = true
	return false
}

// admitsRange is admits for a range of memory. The key of an empty range is not checked.
func (q *QP) admitsRange(h *wire.RETH) bool { return h.Length == 0 || q.admits(h.RKey) }

// refuseKey responds to a request whose key grants less than it wants.
func (q *QP) refuseKey(key uint32) {
	q.chargeKey(key)
	q.refuse(wire.NakRemoteAccess)
}

// chargeKey notes a key that granted too little. A key that has granted something before is
// not a guess, but was used wrongly.
func (q *QP) chargeKey(key uint32) {
	if q.guard != nil && key != q.expectedKey && !q.granted.Has(key) {
		q.guard.Refused()
	}
}

// ExpectKey says that the peer was given a key, which it then need not guess. Only the key of
// the last call counts, for the life of the queue pair.
func (q *QP) ExpectKey(key uint32) { q.expectedKey = key }
