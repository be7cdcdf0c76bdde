package transport

import (
	"bytes"
	"testing"

	"github.com/verbena-rdma/verbena/soft/internal/roce/dma"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// FuzzAccess tests the memory and receives of a host through the functions that package srd
// uses.
func FuzzAccess(f *testing.F) {
	for key := range byte(fuzzRegions + len(fuzzWindows) + 1) {
		for _, at := range []byte{0, 1, 31, 230, 240, 250} {
			f.Add([]byte{accessReceive, 0, accessWrite, key, at, seedFull, 0, 16, accessRead, key, at, seedFull, 8, 9, accessTake, 20, accessWrite, key, at, seedNothing, 0, 0,
				accessRead, key, at, seedNothing, 0, 0, accessRegion, key, accessWrite, key, at, seedWord, 0, 8, accessRead, key, at, seedWord, 0, 8, accessReceive, 4, accessTake, 250})
		}
		f.Add([]byte{accessWindow, key, accessSource, key, 3, accessSource, key, 40, accessRegion, key, accessSource, key, 8, accessReceive, 1, accessRegion, key, accessTake, 9, accessTake, 9, accessReceive, 0, accessClear})
	}
	f.Add([]byte{accessAcquire, fuzzOpen, 200, accessGather, 50, 100, accessScatter, 190, 10, accessScatter, 3, 40, accessRegion, fuzzOpen, accessGather, 0, 9, accessScatter, 0, 9, accessInline, 0, accessInline, 33})
	f.Fuzz(func(t *testing.T, input []byte) {
		w := &fuzzWorld{t: t, o: fuzzOptions{options: options{kind: verbs.RC}.defaults()}}
		w.client = fuzzQP{w: w, host: &w.hosts[0], num: clientQPN}
		h := w.client.host
		h.start(w)
		w.client.open()
		w.client.connect(0)
		h.bindAll(&w.client)
		runAccess(h, &w.client, fuzzInput(input))
		w.client.close()
		h.check()
		fuzzRows.Put(h.fuzzRow)
	})
}

// bindAll binds a window of each type.
func (h *fuzzHost) bindAll(q *fuzzQP) {
	for i := range byte(3) {
		q.bind(i/2, &fuzzInput{i, 16 * i, 32})
	}
	q.transmit(9)
	if q.failed {
		h.w.fail("windows cannot be bound")
	}
}

// Steps of FuzzAccess.
const (
	accessWrite   = iota // a part of a peer's write
	accessRead           // of a read
	accessReceive        // posted
	accessTake           // and filled
	accessSource         // a scatter-gather list
	accessAcquire        // the same, for later
	accessGather
	accessScatter
	accessInline
	accessRegion
	accessWindow
	accessWatch
	accessClear
	accesses
)

func runAccess(h *fuzzHost, q *fuzzQP, in fuzzInput) {
	w := h.w
	rq := q.rq
	var held Segments
	var heldSpans []fuzzSpan
	for len(in) > 0 {
		what := in.pick(accesses)
		w.watched = what == accessWrite
		switch what {
		case accessWrite, accessRead:
			h.part(q, what == accessWrite, &in)
		case accessReceive:
			q.postReceive(&in)
		case accessTake:
			n := 4 * uint32(in.next())
			var r Receive
			if !rq.Take(&r) {
				if len(q.receives) > 0 {
					w.fail("no receive, of %d", len(q.receives))
				}
				break
			}
			expected := q.receives[0]
			q.receives = q.receives[1:]
			h.allow(expected.spans)
			if r.ID() != expected.id || r.Len() != expected.bytes && len(expected.spans) > 0 {
				w.fail("receive %d of %d bytes, not %+v", r.ID(), r.Len(), expected)
			}
			r.Fill(fuzzPayload[:min(n, r.Len())])
		case accessSource, accessAcquire:
			l := &fuzzLayout[in.pick(fuzzRegions)]
			n := uint32(in.next())
			list := []verbs.SGE{{Addr: l.Base + uint64(n&7), Length: n, LKey: l.Key}, {}, {Addr: l.Base + 3*uint64(n), Length: n / 2, LKey: l.Key}}
			spans, ok := h.sgl(nil, list)
			segments, total, got := h.memory.Resolve(held, list, testDomain, verbs.AccessLocalWrite)
			if got != ok || ok && total != uint64(n+n/2) {
				w.fail("%+v resolves to %d bytes, %v, not %v", list, total, got, ok)
			}
			held, heldSpans = segments, spans
			if !ok {
				held = held[:0]
			}
		case accessGather:
			off, n := uint32(in.next()), uint32(in.next())
			pieces, ok := held.Gather(nil, off, n, nil)
			if ok && size(pieces) != n || ok && !live(heldSpans) && n > 0 && off == 0 {
				w.fail("%d bytes from %d: %d, %v", n, off, size(pieces), ok)
			}
		case accessScatter:
			off, n := uint32(in.next()), uint32(in.next())
			total := uint32(0)
			for _, s := range heldSpans {
				total += uint32(s.n)
			}
			h.allow(heldSpans)
			held.Scatter(min(off, total), fuzzPayload[:min(n, total-min(off, total))])
		case accessInline:
			n := in.pick(fuzzInline) + 1
			b, err := NewMemory().AppendInline(nil, []verbs.SGE{inlineEntry(w.inline[:n]), {}})
			one := held[:0].Inline(b)
			if pieces, ok := one.Gather(nil, 0, uint32(n), nil); err != nil || !ok || !bytes.Equal(pieces[0], w.inline[:n]) || len(one.Inline(nil)) != 0 {
				w.fail("inline data of %d bytes", n)
			}
			held, heldSpans = held[:0], nil
		case accessRegion:
			if i := in.next(); h.regions[int(i)%fuzzRegions].Bound() == 0 { // as a device has it
				h.change(i)
			}
		case accessWindow:
			h.changeWindow(in.next())
		case accessWatch:
			h.changeWatch(in.next(), &in)
		case accessClear:
			rq.Clear()
			q.receives = q.receives[:0]
		}
		h.check()
	}
}

func live(spans []fuzzSpan) bool {
	for _, s := range spans {
		if s.region.closed {
			return false
		}
	}
	return true
}

// part writes or reads a part of what a key may grant.
func (h *fuzzHost) part(q *fuzzQP, write bool, in *fuzzInput) {
	which, at := in.next(), in.next()
	length := fuzzLengths[in.pick(len(fuzzLengths))]
	key, va := h.keyAt(which, at, length)
	off := min(8*uint32(in.next()), length)
	n := min(8*uint32(in.next()), length-off)
	header := wire.RETH{VA: va, RKey: key, Length: length}
	access := verbs.AccessRemoteRead
	if write {
		access = verbs.AccessRemoteWrite
	}
	s, _, ok := h.granted(nil, key, va, uint64(length), access)
	vast := !write && key == fuzzLayout[fuzzVast].Key && !h.regions[fuzzVast].closed &&
		va >= 1<<40 && va-1<<40 <= vastLen && uint64(length) <= vastLen-(va-1<<40)
	ok = ok || vast || length == 0
	if !write {
		var bounce []byte
		b, got := h.memory.ReadPart(testDomain, header, off, n, &bounce)
		if got != ok || got && length > 0 && (uint32(len(b)) != n || n > 0 && !h.readable(q.qp, b)) {
			h.w.fail("reading %d bytes of %+v: %d, %v, not %v", n, header, len(b), got, ok)
		}
		return
	}
	if ok && length > 0 {
		h.allowed = append(h.allowed, fuzzSpan{s.region, s.off + int(off), int(n)})
	}
	if got, fault := h.memory.WritePart(testDomain, header, off, fuzzPayload[:n]); got != ok || fault != dma.NoFault {
		h.w.fail("writing %d bytes of %+v: %v, not %v", n, header, got, ok)
	}
}
