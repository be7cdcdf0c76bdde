package transport

import (
	"cmp"
	"slices"

	"github.com/verbena-rdma/verbena/soft/internal/roce/dma"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// Region is registered memory.
type Region struct {
	Key    uint32 // lkey and rkey
	Domain uint32 // the protection domain
	Access verbs.Access
	Base   uint64 // address of the first byte
	Mem    []byte
	// Far is the memory of a region on demand, which has no Mem. A peer may name memory there that
	// cannot be accessed, and is told so.
	Far dma.Far

	closed  bool
	bound   int32    // windows that are bound to it
	watches []*watch // in the order of their offsets
	widest  uint64   // bytes of the widest watch so far
}

// SetMemory sets Mem or Far.
func (r *Region) SetMemory(mem []byte, onDemand bool) {
	if onDemand {
		r.Mem, r.Far = nil, dma.FarOf(mem)
		return
	}
	r.Mem, r.Far = mem, dma.Far{}
}

// OnDemand reports whether the region is on demand.
func (r *Region) OnDemand() bool { return r.Far.Len > 0 }

// Size returns the number of bytes.
func (r *Region) Size() uint64 { return uint64(len(r.Mem)) + uint64(r.Far.Len) }

// Place returns where the bytes [addr, addr+n) of the region are, if all of them are inside it. Only
// the region keeps Mem alive.
func (r *Region) Place(addr uint64, n uint32) (dma.Far, bool) {
	all := r.Far
	if !r.OnDemand() {
		all = dma.FarOf(r.Mem)
	}
	off := addr - r.Base // wraps around to a huge value below the base
	if off > uint64(all.Len) || uint64(n) > uint64(all.Len)-off {
		return dma.Far{}, false
	}
	return all.Slice(off, uint64(n)), true
}

// write copies src to an address. The caller has checked the bounds.
func (r *Region) write(addr uint64, src []byte) dma.Fault {
	off := addr - r.Base
	if r.OnDemand() {
		return r.Far.Slice(off, uint64(len(src))).Write(src)
	}
	return dma.Copy(r.Mem[off:off+uint64(len(src))], src)
}

// slice returns the bytes [addr, addr+n) of a region that is not on demand, if all of them are
// inside it.
func (r *Region) slice(addr uint64, n uint32) ([]byte, bool) {
	off := addr - r.Base // wraps around to a huge value below the base
	if off > uint64(len(r.Mem)) || uint64(n) > uint64(len(r.Mem))-off {
		return nil, false
	}
	return r.Mem[off : off+uint64(n) : off+uint64(n)], true
}

// watch is a function to call after changes to some bytes of a region.
type watch struct {
	off, end uint64 // of the region
	changed  func()
}

// Watch calls changed after a peer has changed any of the n bytes from off, until cancel is
// called.
func (r *Region) Watch(off, n uint64, changed func()) (cancel func()) {
	w := &watch{off, off + n, changed}
	r.watches = slices.Insert(r.watches, r.firstFrom(off), w)
	r.widest = max(r.widest, n)
	return func() { r.unwatch(w) }
}

// unwatch removes a watch. It does not search all of them: there may be thousands, and each is
// removed in the end.
func (r *Region) unwatch(w *watch) {
	for i := r.firstFrom(w.off); i < len(r.watches) && r.watches[i].off == w.off; i++ {
		if r.watches[i] == w {
			r.watches = slices.Delete(r.watches, i, i+1)
			return
		}
	}
}

// firstFrom returns the index of the first watch that begins at or after off.
func (r *Region) firstFrom(off uint64) int {
	i, _ := slices.BinarySearchFunc(r.watches, off, func(w *watch, off uint64) int { return cmp.Compare(w.off, off) })
	return i
}

// notify calls the functions that watch any of the n bytes from addr. It does not search all
// of them: there may be thousands.
func (r *Region) notify(addr, n uint64) {
	off := addr - r.Base
	for _, w := range r.watches[r.firstFrom(off-min(off, r.widest)):] {
		if w.off >= off+n {
			break
		}
		if off < w.end {
			w.changed()
		}
	}
}

// Memory is the device's table of regions and windows, by key.
type Memory struct {
	// Virtual: the addresses of regions are not pointers.
	Virtual bool
	regions map[uint32]*Region
	windows map[uint32]*Window // by the upper 24 bits of their keys
}

// NewMemory returns an empty table.
func NewMemory() *Memory {
	return &Memory{regions: make(map[uint32]*Region), windows: make(map[uint32]*Window)}
}

// Add enters a region; it reports false if its key is taken.
func (m *Memory) Add(r *Region) bool {
	if _, taken := m.regions[r.Key]; taken || r.Key == 0 || m.windows[tag(r.Key)] != nil {
		return false
	}
	m.regions[r.Key] = r
	return true
}

// Remove ends a registration. Work requests that still name the region fail from now on, and
// nothing accesses its memory any more.
func (m *Memory) Remove(r *Region) {
	r.closed = true
	delete(m.regions, r.Key)
}

// Len is the number of regions.
func (m *Memory) Len() int { return len(m.regions) }

// find returns the bytes that a local key grants to a domain, or false if key, domain, bounds or
// access are wrong.
func (m *Memory) find(key, domain uint32, addr uint64, n uint32, access verbs.Access) (segment, bool) {
	r := m.regions[key]
	if r == nil || r.Domain != domain || r.Access&access != access {
		return segment{}, false
	}
	if r.OnDemand() {
		far, ok := r.Place(addr, n)
		return segment{region: r, far: far}, ok
	}
	b, ok := r.slice(addr, n)
	return segment{region: r, mem: b}, ok
}

// Region returns the region with a local key, or nil.
func (m *Memory) Region(key uint32) *Region { return m.regions[key] }

// incomingWrite is the destination of a peer's write.
type incomingWrite struct {
	grant        // its region is nil if no write is under way, or it has no data
	left  uint32 // bytes to come
	size  uint32 // bytes in all
}

// begin checks the memory that a write names.
func (w *incomingWrite) begin(q *QP, h wire.RETH) bool {
	var g grant
	if h.Length > 0 {
		var ok bool
		if g, ok = q.memory.grant(q, h.RKey, h.VA, h.Length, verbs.AccessRemoteWrite); !ok {
			return false
		}
	}
	*w = incomingWrite{grant: g, left: h.Length, size: h.Length}
	return true
}

// copy writes the next n bytes, from parts. n is at most left. It reports false if the memory
// was taken away since, or is on demand and cannot be accessed.
func (w *incomingWrite) copy(n uint32, parts [][]byte) (valid bool, f dma.Fault) {
	if n == 0 {
		return true, dma.NoFault
	}
	if _, inside := w.region.Place(w.addr, n); !inside || !w.acquire() {
		return false, dma.NoFault
	}
	defer w.release()
	// Programs poll a small write that follows their data. Adapters write memory in order, too.
	dma.StoreBarrier()
	if n == 8 && len(parts) > 1 { // they are stored as one word here too
		var word [8]byte
		if f = copyWord(&word, parts); f != dma.NoFault {
			return true, f
		}
		f = w.region.write(w.addr, word[:])
	} else {
		at := w.addr
		for _, part := range parts {
			if f = w.region.write(at, part); f != dma.NoFault {
				break
			}
			at += uint64(len(part))
		}
	}
	if f == dma.TargetFault && w.region.OnDemand() {
		return false, dma.NoFault
	}
	return true, f
}

// copyWord copies 8 bytes from parts.
func copyWord(word *[8]byte, parts [][]byte) dma.Fault {
	at := word[:]
	for _, part := range parts {
		if dma.Copy(at[:len(part)], part) != dma.NoFault {
			return dma.SourceFault
		}
		at = at[len(part):]
	}
	return dma.NoFault
}

// placed moves past n bytes that have been written.
func (w *incomingWrite) placed(n uint32) {
	if n == 0 {
		return
	}
	if len(w.region.watches) > 0 {
		w.region.notify(w.addr, uint64(n))
	}
	w.addr += uint64(n)
	w.left -= n
}

// Segments are the pieces of local memory that a work request names.
type Segments []segment

type segment struct {
	region *Region // nil for inline data
	mem    []byte
	far    dma.Far // of a region on demand, instead of mem
}

func (s *segment) live() bool { return s.region == nil || !s.region.closed }

// Resolve replaces segs with the segments of a scatter-gather list, and returns the sum of their
// lengths. It reports false if a key, its domain, its bounds or its access are
// wrong; empty entries are left out unchecked.
func (m *Memory) Resolve(segs Segments, sgl []verbs.SGE, domain uint32, access verbs.Access) (Segments, uint64, bool) {
	segs = slices.Grow(segs[:0], len(sgl))
	var total uint64
	for i := range sgl {
		if sgl[i].Length == 0 {
			continue
		}
		s, ok := m.find(sgl[i].LKey, domain, sgl[i].Addr, sgl[i].Length, access)
		if !ok {
			return segs, total, false
		}
		segs = append(segs, s)
		total += uint64(sgl[i].Length)
	}
	return segs, total, true
}

// Inline replaces segs with one segment of memory that needs no registration.
func (segs Segments) Inline(b []byte) Segments {
	if len(b) == 0 {
		return segs[:0]
	}
	return append(segs[:0], segment{mem: b})
}

// Gather appends the pieces of segs that hold the bytes [off, off+n), or copies of them in bounce. It
// reports false if a region was closed since, or is on demand and cannot be read.
func (segs Segments) Gather(pieces [][]byte, off, n uint32, bounce *[]byte) ([][]byte, bool) {
	used := 0 // of bounce
	for i := range segs {
		if n == 0 {
			break
		}
		mem := segs[i].mem
		if off >= uint32(len(mem)) {
			far := segs[i].far
			if off >= uint32(far.Len) {
				off -= uint32(len(mem)) + uint32(far.Len)
				continue
			}
			take := int(min(n, uint32(far.Len)-off))
			*bounce = slices.Grow((*bounce)[:used], take)[:used+take]
			piece := (*bounce)[used:]
			if !segs[i].live() || far.Slice(uint64(off), uint64(take)).Read(piece) != dma.NoFault {
				return pieces, false
			}
			pieces = append(pieces, piece)
			n -= uint32(take)
			off, used = 0, used+take
			continue
		}
		if !segs[i].live() {
			return pieces, false
		}
		mem = mem[off:]
		off = 0
		if uint32(len(mem)) > n {
			mem = mem[:n]
		}
		pieces = append(pieces, mem)
		n -= uint32(len(mem))
	}
	return pieces, n == 0
}

// Scatter places data at offset off of segs. The caller has checked that the data fit. A
// region that was closed since is a fault.
func (segs Segments) Scatter(off uint32, data []byte) dma.Fault {
	for i := range segs {
		if len(data) == 0 {
			break
		}
		mem := segs[i].mem
		size := uint32(len(mem)) + uint32(segs[i].far.Len)
		if off >= size {
			off -= size
			continue
		}
		if !segs[i].live() {
			return dma.TargetFault
		}
		n := min(int(size-off), len(data))
		var f dma.Fault
		if mem != nil {
			f = dma.Copy(mem[off:int(off)+n], data[:n])
		} else {
			f = segs[i].far.Slice(uint64(off), uint64(n)).Write(data[:n])
		}
		if f != dma.NoFault {
			return f
		}
		data = data[n:]
		off = 0
	}
	if len(data) > 0 {
		return dma.TargetFault
	}
	return dma.NoFault
}
