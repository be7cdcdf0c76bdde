package transport

import (
	"slices"

	"github.com/verbena-rdma/verbena/soft/internal/roce/dma"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// This file gives package srd access to the device's memory and receives, under the rules of
// every transport service.

// Segments are the pieces of local memory that a work request names.
type Segments []segment

// Resolve replaces s with the segments of a scatter-gather list, and returns the sum of their
// lengths. It reports false if a key, its domain, its bounds or its access are wrong.
func (m *Memory) Resolve(s Segments, sgl []verbs.SGE, domain uint32, access verbs.Access) (Segments, uint64, bool) {
	return m.resolve(slices.Grow(s[:0], len(sgl)), sgl, domain, access)
}

// Inline replaces s with one segment of memory that needs no registration.
func (s Segments) Inline(b []byte) Segments {
	if len(b) == 0 {
		return s[:0]
	}
	return append(s[:0], segment{mem: b})
}

// Gather appends the pieces that hold the bytes [off, off+n). It reports false if a region was
// closed since.
func (s Segments) Gather(pieces [][]byte, off, n uint32) ([][]byte, bool) {
	return gather(pieces, s, off, n)
}

// Scatter places data at an offset. The caller has checked that the data fit. Scatter reports
// false if a region was closed since, or its memory cannot be written.
func (s Segments) Scatter(off uint32, data []byte) bool {
	return scatter(s, off, data) == dma.NoFault
}

// WritePart places a part of a peer's write, whose first byte is at an offset, and reports
// whether the peer may write. It checks the range of the whole write. The caller has checked
// that the part lies inside it. f is a fault if the peer may write there, but the memory
// cannot be accessed.
func (m *Memory) WritePart(domain uint32, h wire.RETH, off uint32, data []byte) (allowed bool, f dma.Fault) {
	w := incomingWrite{left: h.Length - off, size: h.Length}
	if h.Length > 0 {
		if w.grant, allowed = m.grantIn(domain, nil, h.RKey, h.VA, h.Length, verbs.AccessRemoteWrite); !allowed {
			return false, dma.NoFault
		}
		w.addr += uint64(off)
	}
	n := uint32(len(data))
	if allowed, f = w.copy(n, [][]byte{data}); allowed && f == dma.NoFault {
		w.placed(n)
	}
	return allowed, f
}

// Readable reports whether a peer may read the range in h.
func (m *Memory) Readable(domain uint32, h wire.RETH) bool {
	_, ok := m.grantRead(domain, h)
	return ok
}

// ReadPart returns n bytes, at an offset, of the range that a peer reads: for an Output, or as
// a copy in bounce. It reports false if the peer may not read the whole range.
func (m *Memory) ReadPart(domain uint32, h wire.RETH, off, n uint32, bounce *[]byte) ([]byte, bool) {
	g, ok := m.grantRead(domain, h)
	if !ok || h.Length == 0 {
		return nil, ok
	}
	g.addr += uint64(off)
	return g.read(n, bounce)
}

func (m *Memory) grantRead(domain uint32, h wire.RETH) (grant, bool) {
	if h.Length == 0 {
		return grant{}, true
	}
	return m.grantIn(domain, nil, h.RKey, h.VA, h.Length, verbs.AccessRemoteRead)
}

// Receive is a receive that has been taken off its queue.
type Receive struct{ wqe recvWQE }

// Take takes the oldest receive off the queue. It reports false if there is none.
func (r *RecvQueue) Take(into *Receive) bool { return r.take(&into.wqe) }

// Clear forgets all receives, and frees their queue entries.
func (r *RecvQueue) Clear() {
	r.empty()
	r.taken = 0
}

// Unpolled returns a count for receives of the queue.
func (r *RecvQueue) Unpolled() Unpolled { return NewUnpolled(&r.taken) }

// ID returns the ID of the receive request.
func (r *Receive) ID() uint64 { return r.wqe.id }

// Len returns how many bytes the receive takes.
func (r *Receive) Len() uint32 { return r.wqe.length }

// Fill places a message that is not longer than Len.
func (r *Receive) Fill(data []byte) verbs.Status {
	if r.wqe.fault || scatter(r.wqe.segs, 0, data) != dma.NoFault {
		return verbs.StatusLocalProtectionError
	}
	return verbs.StatusSuccess
}
