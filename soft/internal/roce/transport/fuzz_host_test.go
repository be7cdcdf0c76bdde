package transport

import (
	"bytes"
	"sync"
	"unsafe"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// The regions of a fuzzed host. Their bytes are contiguous, with guards between them, so that
// one comparison finds any byte changed without permission.
const (
	fuzzOpen     = iota
	fuzzReadOnly // for peers
	fuzzHidden   // from peers, but for windows
	fuzzForeign  // of another protection domain
	fuzzBox      // receives
	fuzzResults  // results of reads and atomics
	fuzzVast     // to read alone, and not in the row
	fuzzRegions
)

const vastLen = 2 << 20

var fuzzLayout = [fuzzRegions]struct {
	Region
	size int
}{
	fuzzOpen:     {Region{Key: remoteKey, Base: remoteBase, Domain: testDomain, Access: everyAccess}, 4096},
	fuzzReadOnly: {Region{Key: 0xa1, Base: remoteBase + 4096, Domain: testDomain, Access: verbs.AccessRemoteRead}, 256},
	fuzzHidden:   {Region{Key: 0xa2, Base: remoteBase - 512, Domain: testDomain, Access: verbs.AccessLocalWrite | verbs.AccessMWBind}, 512},
	fuzzForeign:  {Region{Key: 0xa3, Base: remoteBase, Domain: testDomain + 1, Access: everyAccess}, 256},
	fuzzBox:      {Region{Key: 0xa4, Base: 0x100000, Domain: testDomain, Access: verbs.AccessLocalWrite}, 2048},
	fuzzResults:  {Region{Key: 0xa5, Base: 0x200000, Domain: testDomain, Access: verbs.AccessLocalWrite}, 2048},
	fuzzVast:     {Region{Key: 0xa6, Base: 1 << 40, Domain: testDomain, Access: verbs.AccessRemoteRead}, vastLen},
}

// Where each region begins in the row, and how long the row is.
var fuzzOffsets, fuzzRowLen = func() (at [fuzzVast]int, end int) {
	end = guardLen
	for i := range at {
		at[i] = end
		end += fuzzLayout[i].size + guardLen
	}
	return at, end
}()

var fuzzVastBytes = sync.OnceValue(func() []byte { return make([]byte, vastLen) })

// fuzzRow is the memory of a host, which the next input uses again.
type fuzzRow struct {
	now   []byte
	known []byte // the same, as it has to be
}

var fuzzRows = sync.Pool{New: func() any {
	words := make([]uint64, fuzzRowLen/8) // aligned, as atomics need
	return &fuzzRow{now: unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), fuzzRowLen), known: make([]byte, fuzzRowLen)}
}}

var fuzzPristine = pattern(make([]byte, fuzzRowLen), 1)

// Windows of a host, by the upper bits of their keys.
var fuzzWindows = [...]struct {
	kind   verbs.MWType
	domain uint32
	key    uint32
}{
	{verbs.MWType2, testDomain, 0xabcdef00},
	{verbs.MWType1, testDomain, 0xabcdee00},
	{verbs.MWType2, testDomain, 0xabcded00},
	{verbs.MWType2, testDomain + 1, 0xabcdec00},
}

// fuzzHost is memory, with what the queue pairs of one device share.
type fuzzHost struct {
	w *fuzzWorld
	*fuzzRow
	memory   *Memory
	regions  [fuzzRegions]*Region // the last of each
	windows  [len(fuzzWindows)]fuzzWindow
	watches  []*fuzzWatch
	guard    fuzzGuard
	counters Counters
	waiting  RNRWaiters
	shared   *RecvQueue // nil: none
	receives []fuzzReceive
	allowed  []fuzzSpan // what the packet at hand may change
}

func (h *fuzzHost) start(w *fuzzWorld) {
	*h = fuzzHost{w: w, fuzzRow: fuzzRows.Get().(*fuzzRow), memory: NewMemory(), guard: fuzzGuard{open: true}}
	copy(h.now, fuzzPristine)
	copy(h.known, fuzzPristine)
	for i := range fuzzLayout {
		h.register(i)
	}
	for i := range h.windows {
		h.addWindow(i)
	}
}

// register registers a region, anew if it was before.
func (h *fuzzHost) register(i int) {
	if r := h.regions[i]; r != nil && !r.closed {
		return
	}
	r := fuzzLayout[i].Region
	if i == fuzzVast {
		r.Mem = fuzzVastBytes()
	} else {
		at, n := fuzzOffsets[i], fuzzLayout[i].size
		r.Mem = h.now[at : at+n : at+n]
	}
	if !h.memory.Add(&r) || h.memory.Add(&r) {
		h.w.fail("a key is taken when it is not, or not taken when it is")
	}
	h.regions[i] = &r
}

func (h *fuzzHost) addWindow(i int) {
	w := &h.windows[i]
	if w.Window != nil && !w.closed {
		return
	}
	w.Window = NewWindow(fuzzWindows[i].kind, fuzzWindows[i].domain, fuzzWindows[i].key)
	w.posted = nil
	if !h.memory.AddWindow(w.Window) || h.memory.AddWindow(w.Window) {
		h.w.fail("a key of a window is taken when it is not, or not taken when it is")
	}
	w.see()
}

// fuzzSpan is a part of a region in the row, as long as that region is registered.
type fuzzSpan struct {
	region *Region
	off, n int // in the row
}

// span is the part of a region, or nothing.
func (h *fuzzHost) span(r *Region, addr, n uint64) (fuzzSpan, bool) {
	for i := range fuzzOffsets {
		if h.regions[i] != r {
			continue
		}
		size := uint64(len(r.Mem))
		off := addr - r.Base
		if r.closed || addr < r.Base || off > size || n > size-off {
			return fuzzSpan{}, false
		}
		return fuzzSpan{r, fuzzOffsets[i] + int(off), int(n)}, true
	}
	return fuzzSpan{}, false
}

// sgl is span for what a program names by its local key.
func (h *fuzzHost) sgl(spans []fuzzSpan, list []verbs.SGE) ([]fuzzSpan, bool) {
	for _, e := range list {
		if e.Length == 0 {
			continue
		}
		found := false
		for _, r := range h.regions {
			if r.closed || r.Key != e.LKey || r.Domain != testDomain || r.Access&verbs.AccessLocalWrite == 0 {
				continue
			}
			if s, ok := h.span(r, e.Addr, uint64(e.Length)); ok {
				spans, found = append(spans, s), true
			}
		}
		if !found {
			return nil, false
		}
	}
	return spans, true
}

// granted is what a key lets the peer of a queue pair use: the rules of grant, said once
// more. The window is nil if it is the region's own key.
func (h *fuzzHost) granted(q *QP, key uint32, addr, n uint64, access verbs.Access) (fuzzSpan, *fuzzWindow, bool) {
	for _, r := range h.regions {
		if !r.closed && r.Key == key && r.Domain == testDomain && r.Access&access == access {
			s, ok := h.span(r, addr, n)
			return s, nil, ok
		}
	}
	for i := range h.windows {
		w := &h.windows[i]
		if w.closed || w.region == nil || w.key != key || w.Domain != testDomain || w.access&access != access {
			continue
		}
		if w.Type == verbs.MWType2 && w.qp != q {
			continue
		}
		off := addr
		if !w.zeroBased {
			off = addr - w.addr
			if addr < w.addr {
				continue
			}
		}
		if off > w.length || n > w.length-off {
			continue
		}
		s, ok := h.span(w.region, w.addr+off, n)
		return s, w, ok
	}
	return fuzzSpan{}, nil, false
}

// allow lets what is at hand change parts of regions, unless these are gone.
func (h *fuzzHost) allow(spans []fuzzSpan) {
	for _, s := range spans {
		if !s.region.closed {
			h.allowed = append(h.allowed, s)
		}
	}
}

// check fails if anything has changed that was not allowed to.
func (h *fuzzHost) check() {
	h.checkWatches()
	for _, s := range h.allowed {
		copy(h.known[s.off:s.off+s.n], h.now[s.off:])
	}
	h.allowed = h.allowed[:0]
	if bytes.Equal(h.known, h.now) {
		return
	}
	for i := range h.known {
		if h.known[i] != h.now[i] {
			h.w.fail("byte %d of the memory has changed; regions begin at %v", i, fuzzOffsets)
		}
	}
}

// fuzzWindow is a window, with what a fuzzer knows of it.
type fuzzWindow struct {
	*Window
	posted []binding // all that were
	last   fuzzBound
	epoch  int // of its bindings
}

type fuzzBound struct {
	region       *Region
	qp           *QP
	key          uint32
	addr, length uint64
}

// see takes note of how the window is bound, and reports whether that has changed.
func (w *fuzzWindow) see() bool {
	b := fuzzBound{w.region, w.qp, w.key, w.addr, w.length}
	if b == w.last {
		return false
	}
	w.last = b
	w.epoch++
	return true
}

// checkWindows fails if a window is bound as no request wanted, or as none may.
func (h *fuzzHost) checkWindows() {
	for i := range h.windows {
		w := &h.windows[i]
		if !w.see() || w.region == nil {
			continue
		}
		wanted := false
		for _, b := range w.posted {
			wanted = wanted || b.region == w.region && b.addr == w.addr && b.length == w.length && b.key == w.key && b.access&^verbs.AccessZeroBased == w.access
		}
		r := w.region
		if !wanted || r.Domain != testDomain || w.Domain != testDomain || r.Access&verbs.AccessMWBind == 0 ||
			w.access&(verbs.AccessRemoteWrite|verbs.AccessRemoteAtomic) != 0 && r.Access&verbs.AccessLocalWrite == 0 {
			h.w.fail("window %d is bound as it must not be: %+v", i, w.last)
		}
	}
}

// fuzzWatch is a watch of a region.
type fuzzWatch struct {
	fuzzSpan
	fired  bool
	cancel func()
}

func (h *fuzzHost) watch(i, off, n int) {
	w := &fuzzWatch{fuzzSpan: fuzzSpan{h.regions[i], fuzzOffsets[i] + off, n}}
	w.cancel = h.regions[i].Watch(uint64(off), uint64(n), func() { w.fired = true })
	h.watches = append(h.watches, w)
}

// checkWatches fails if a watch has missed a change, or has seen one that was none of its
// own. It comes before the changes are taken note of.
func (h *fuzzHost) checkWatches() {
	for _, w := range h.watches {
		near, changed := false, false
		for _, s := range h.allowed {
			from, to := max(s.off, w.off), min(s.off+s.n, w.off+w.n)
			if from < to && s.region == w.region {
				near = true
				changed = changed || !bytes.Equal(h.known[from:to], h.now[from:to])
			}
		}
		if w.fired && !near || changed && !w.fired && h.w.watched {
			h.w.fail("a watch of %d bytes: called is %v, near is %v, changed is %v", w.n, w.fired, near, changed)
		}
		w.fired = false
	}
}

// fuzzGuard is a KeyGuard.
type fuzzGuard struct {
	open    bool
	refused int
}

func (g *fuzzGuard) Admits() bool { return g.open }
func (g *fuzzGuard) Refused()     { g.refused++ }

// readable reports whether bytes that leave for a peer are any that it may read.
func (h *fuzzHost) readable(q *QP, b []byte) bool {
	r, addr := h.whose(b)
	if r == nil {
		return h.bounced(b)
	}
	if r.closed || r.Domain != testDomain {
		return false
	}
	if r.Access&verbs.AccessRemoteRead != 0 {
		return true
	}
	for i := range h.windows {
		w := &h.windows[i]
		if w.region == r && w.access&verbs.AccessRemoteRead != 0 && (w.qp == q || w.Type == verbs.MWType1) &&
			addr >= w.addr && addr+uint64(len(b)) <= w.addr+w.length {
			return true
		}
	}
	return false
}

// bounced reports whether bytes are a copy of some that a window of type 1 lets peers read.
func (h *fuzzHost) bounced(b []byte) bool {
	for i := range h.windows {
		w := &h.windows[i]
		if w.Type != verbs.MWType1 || w.region == nil || w.region.closed || w.access&verbs.AccessRemoteRead == 0 {
			continue
		}
		if bytes.Contains(w.region.Mem[w.addr-w.region.Base:][:w.length], b) {
			return true
		}
	}
	return false
}

// whose is the region that bytes lie in, and their address there.
func (h *fuzzHost) whose(b []byte) (*Region, uint64) {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	for _, r := range h.regions {
		off := at - uintptr(unsafe.Pointer(unsafe.SliceData(r.Mem)))
		if off < uintptr(len(r.Mem)) && off+uintptr(len(b)) <= uintptr(len(r.Mem)) {
			return r, r.Base + uint64(off)
		}
	}
	return nil, 0
}

// fuzzGrant is what the message of several packets that is under way may write.
type fuzzGrant struct {
	span   fuzzSpan
	window *fuzzWindow
	epoch  int
}

func (g *fuzzGrant) holds() bool {
	return g.span.region != nil && !g.span.region.closed && (g.window == nil || g.window.epoch == g.epoch)
}

// grantFor notes what a packet with a RETH begins to write.
func (h *fuzzHost) grantFor(q *fuzzQP, p *wire.Packet) fuzzGrant {
	s, w, ok := h.granted(q.qp, p.RETH.RKey, p.RETH.VA, uint64(p.RETH.Length), verbs.AccessRemoteWrite)
	if !ok || !q.mayUse(p.RETH.RKey) || q.qp.attr.Access&verbs.AccessRemoteWrite == 0 {
		return fuzzGrant{}
	}
	g := fuzzGrant{span: s, window: w}
	if w != nil {
		g.epoch = w.epoch
	}
	return g
}
