package transport

import (
	"sync"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/verbs"
)

// Window is a memory window (IBTA 10.6.7). The upper 24 bits of its key belong to it as long
// as it exists, whatever it is bound to.
type Window struct {
	Type   verbs.MWType
	Domain uint32

	// mu guards the fields below. Queue pairs need not share a lock: a window may be bound or
	// taken away while the peer of another queue pair uses it.
	mu     sync.RWMutex
	key    uint32 // of the last bind that was executed
	posted uint32 // of the last bind that was posted
	closed bool

	region    *Region // nil: it is bound to nothing
	addr      uint64  // of the first byte, in the region
	length    uint64
	access    verbs.Access // what peers may do
	zeroBased bool         // peers address the first byte as 0

	// binds counts the grants that have ended, so that requests under way notice.
	binds uint64
	qp    *QP // the queue pair on which a type 2 window is bound
	node  fifo.Node[*Window]
}

// NewWindow returns a window that is bound to nothing. It uses the upper 24 bits of the key.
func NewWindow(t verbs.MWType, domain, key uint32) *Window {
	w := &Window{Type: t, Domain: domain, key: key, posted: key}
	w.node.Value = w
	return w
}

// RKey returns the key of the last bind that was posted.
func (w *Window) RKey() uint32 {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.posted
}

// post notes the key of a posted bind, and returns it. The key of a type 1 window is chosen
// here, so that the program knows it at once.
func (w *Window) post(key uint32) uint32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.Type == verbs.MWType1 {
		key = verbs.NextRKey(w.posted)
	}
	w.posted = key
	return key
}

// tag is the part of a key that belongs to one window.
func tag(key uint32) uint32 { return key >> 8 }

// AddWindow enters a window; it reports false if one of its keys is taken.
func (m *Memory) AddWindow(w *Window) bool {
	if _, taken := m.windows[tag(w.key)]; taken || tag(w.key) == 0 {
		return false
	}
	for low := range uint32(1 << 8) {
		if m.regions[w.key&^0xff|low] != nil {
			return false
		}
	}
	m.windows[tag(w.key)] = w
	return true
}

// RemoveWindow ends what a window grants, for good. Nothing accesses memory through it any
// more.
func (m *Memory) RemoveWindow(w *Window) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unbind()
	w.closed = true
	delete(m.windows, tag(w.key))
}

// Windows returns the number of windows.
func (m *Memory) Windows() int { return len(m.windows) }

// unbind ends what the window grants. The caller holds its lock, so no packet uses it.
func (w *Window) unbind() {
	if w.region == nil {
		return
	}
	w.binds++
	atomic.AddInt32(&w.region.bound, -1)
	var mem []byte
	if !w.region.OnDemand() {
		mem = w.region.Mem[w.addr-w.region.Base:][:w.length]
	}
	w.region = nil
	if q := w.qp; q != nil {
		q.windows.Remove(&w.node)
		w.qp = nil
		if mem != nil { // of memory on demand, Outputs have copies
			q.revoked(mem)
		}
	}
}

// binding is the content of a posted bind.
type binding struct {
	window *Window
	region *Region
	key    uint32
	addr   uint64
	length uint64
	access verbs.Access
}

// bind executes a bind and reports whether it was legal (IBTA 10.6.7.2.2).
func (q *QP) bind(b *binding) bool {
	w, r := b.window, b.region
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.Domain != q.domain || tag(b.key) != tag(w.key) {
		return false
	}
	zeroBased := b.access&verbs.AccessZeroBased != 0
	switch {
	case w.Type == verbs.MWType1 && zeroBased,
		w.Type == verbs.MWType2 && (w.region != nil || b.length == 0):
		return false
	}
	if b.length > 0 && !r.bindable(b) {
		return false
	}
	w.unbind()
	w.key = b.key
	if b.length == 0 {
		return true
	}
	atomic.AddInt32(&r.bound, 1)
	w.region, w.addr, w.length = r, b.addr, b.length
	w.access, w.zeroBased = b.access&^verbs.AccessZeroBased, zeroBased
	if w.Type == verbs.MWType2 {
		w.qp = q
		q.windows.Push(&w.node)
	}
	return true
}

// bindable reports whether the region allows the bind.
func (r *Region) bindable(b *binding) bool {
	if r.closed || r.Domain != b.window.Domain || r.Access&verbs.AccessMWBind == 0 {
		return false
	}
	if b.access&(verbs.AccessRemoteWrite|verbs.AccessRemoteAtomic) != 0 && r.Access&verbs.AccessLocalWrite == 0 {
		return false
	}
	off := b.addr - r.Base
	return off <= r.Size() && b.length <= r.Size()-off
}

// Bound returns how many windows are bound to the region.
func (r *Region) Bound() int { return int(atomic.LoadInt32(&r.bound)) }

// revocable returns the window that the owner of a queue pair, or its peer, can invalidate by
// its key, or nil. It must be of type 2 and bound on that queue pair (IBTA 10.6.5).
func (q *QP) revocable(key uint32) *Window {
	w := q.memory.windows[tag(key)]
	if w == nil {
		return nil
	}
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.key != key || w.qp != q {
		return nil
	}
	return w
}

// revoke takes away a window that revocable has returned.
func (w *Window) revoke() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unbind()
}

// execute executes a request that has no packets. If the request is not legal, execute notes
// the fault and reports false.
func (q *QP) execute(w *sendWQE) bool {
	w.executed = true
	ok := false
	if w.wr.Op == verbs.OpBindMW {
		ok = q.bind(&w.bind)
	} else if window := q.revocable(w.wr.InvalidateRKey); window != nil {
		window.revoke()
		ok = true
	}
	if !ok {
		w.fault = verbs.StatusMemoryWindowBindError
	}
	return ok
}

// endWindows ends what the type 2 windows grant that are bound on the queue pair: its next
// peer is another.
func (q *QP) endWindows() {
	for e := q.windows.Front(); e != nil; e = q.windows.Front() {
		e.Value.revoke()
	}
}
