package transport

import (
	"slices"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

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
