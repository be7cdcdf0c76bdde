package transport

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// chooser is where a workload takes its decisions from.
type chooser interface {
	IntN(n int) int // 0 … n-1
}

// plan says what a workload does.
type plan struct {
	requests   int
	maxMessage int
	sizes      func(c chooser) int
	drains     bool // now and then the send queue is drained and started again
}

// workload posts random requests on a node and keeps a model of what they do
// to memory, as if each were executed at once when it is posted. Where the rules
// of ordering do not give that (IBTA 10.8.3.3), it sets a fence.
type workload struct {
	*node
	plan
	choose chooser

	local, remote  *arena // what requests read from and land in; what they name at the peer
	results        *arena // for results that no model can foretell
	shared         *arena // the counter that everybody adds to, at the peer
	localModel     []byte
	remoteModel    []byte
	added          uint64        // to the shared counter
	peerReceives   *receiveSlots // the peer's
	lentByPeer     *lentWindow   // of the peer's memory, to this end
	lentToPeer     *lentWindow   // of this end's, to the peer
	ownWindow      *lentWindow   // that this end takes back itself
	posted         int
	awaited        []verbs.WC // completions to come
	pending        []hazard
	nextPause      int
	drained        bool
	lowestRetries  int
	completedCount int
	byWindow       int // requests
}

// hazard is what a read or atomic on its way may still read or write.
type hazard struct {
	id      uint64
	remote  span
	results []span
	fenced  bool // nothing posted from now on can meet it
}

// fills reports whether the result lands in one of the spans.
func (h *hazard) fills(spans []span) bool {
	for _, l := range h.results {
		for _, s := range spans {
			if l.overlaps(s) {
				return true
			}
		}
	}
	return false
}

type span struct{ from, to int }

func (s span) overlaps(o span) bool { return s.from < o.to && o.from < s.to }

func newWorkload(n *node, p plan, c chooser, local, remote, results, shared *arena, to *receiveSlots) *workload {
	w := &workload{
		node: n, plan: p, choose: c, local: local, remote: remote, results: results, shared: shared, peerReceives: to,
		localModel: bytes.Clone(local.Mem), remoteModel: bytes.Clone(remote.Mem),
		lowestRetries: 1 << 20,
	}
	return w
}

// work checks what has completed and posts more.
func (w *workload) work() {
	w.lowestRetries = min(w.lowestRetries, w.qp.retries)
	for _, wc := range w.send.list {
		if len(w.awaited) == 0 || wc != w.awaited[0] {
			require.Failf(w.t, "wrong completion", "got %+v, awaited %+v", wc, w.awaited[:min(1, len(w.awaited))])
		}
		w.awaited = w.awaited[1:]
		w.completedCount++
		if wc.Opcode == verbs.WCBindMW && w.lentToPeer.state == windowBound && wc.ID == w.lentToPeer.bound {
			w.lentToPeer.state = windowLent
		}
		for len(w.pending) > 0 && w.pending[0].id <= wc.ID {
			w.pending = w.pending[1:]
		}
	}
	w.send.clear()
	if w.drains && !w.drained && w.posted >= w.nextPause {
		w.pause()
	}
	for w.posted < w.requests && !w.qp.sq.Full() {
		wr := w.draw()
		n, err := w.qp.PostSend([]verbs.SendWR{wr})
		if n != 1 || err != nil {
			require.NoError(w.t, err)
		}
		w.posted++
	}
}

// pause drains the send queue for a while.
func (w *workload) pause() {
	w.nextPause = w.posted + 1 + w.choose.IntN(60)
	w.drained = true
	w.modify(verbs.QPSendQueueDrained)
	w.net.After(time.Duration(1+w.choose.IntN(50))*10*time.Microsecond, func() {
		w.modify(verbs.QPReadyToSend)
		w.drained = false
		w.settle()
	})
}

// draw makes the next request and applies it to the model.
func (w *workload) draw() verbs.SendWR {
	wr := verbs.SendWR{ID: uint64(w.posted), RKey: w.remote.Key}
	if w.choose.IntN(3) > 0 || w.qp.sq.taken == w.qp.sq.depth-1 {
		wr.Flags |= verbs.FlagSignaled // the last place: else none might ever be free again
	}
	if w.choose.IntN(4) == 0 {
		wr.Flags |= verbs.FlagSolicited
	}
	if w.choose.IntN(16) == 0 {
		wr.Flags |= verbs.FlagFence
	}
	wc := verbs.WC{ID: wr.ID, QPN: w.qp.Num()}
	switch w.choose.IntN(12) {
	case 0:
		wr.Op, wc.Opcode = verbs.OpSend, verbs.WCSend
	case 1:
		wr.Op, wc.Opcode = verbs.OpSendImm, verbs.WCSend
	case 2:
		wr.Op, wc.Opcode = verbs.OpWrite, verbs.WCWrite
	case 3:
		wr.Op, wc.Opcode = verbs.OpWriteImm, verbs.WCWrite
	case 4:
		wr.Op, wc.Opcode = verbs.OpRead, verbs.WCRead
	case 5:
		wr.Op, wc.Opcode = verbs.OpCompareSwap, verbs.WCCompareSwap
	case 6:
		wr.Op, wc.Opcode = verbs.OpFetchAdd, verbs.WCFetchAdd
	case 7:
		wr.Op, wc.Opcode = verbs.OpFetchAdd, verbs.WCFetchAdd
		w.addShared(&wr)
	case 8:
		wr.Op, wc.Opcode = verbs.OpSend, verbs.WCSend
		if w.lentToPeer.state == windowIdle {
			w.drawBind(&wr, w.lentToPeer)
			w.lentToPeer.state, w.lentToPeer.bound = windowBound, wr.ID
		}
	case 9:
		wr.Op, wc.Opcode = verbs.OpSend, verbs.WCSend
		if w.lentByPeer.state == windowLent {
			w.lentByPeer.state = windowReturned
			// The fence has its reads done before it is gone.
			wr.Op, wr.InvalidateRKey = verbs.OpSendInvalidate, w.lentByPeer.key
			wr.Flags |= verbs.FlagFence
		}
	case 10:
		if w.ownWindow.state == windowIdle {
			w.drawBind(&wr, w.ownWindow)
			w.ownWindow.state = windowBound
		} else {
			wr.Op, wr.InvalidateRKey = verbs.OpLocalInvalidate, w.ownWindow.key
			wr.Flags &^= verbs.FlagSolicited
			w.ownWindow.state = windowIdle
		}
	case 11:
		wr.Op, wc.Opcode = verbs.OpAtomicWrite, verbs.WCAtomicWrite
	}
	switch wr.Op {
	case verbs.OpBindMW:
		wc.Opcode = verbs.WCBindMW
	case verbs.OpLocalInvalidate:
		wc.Opcode = verbs.WCLocalInvalidate
	}
	switch {
	case wc.Opcode == verbs.WCBindMW || wc.Opcode == verbs.WCLocalInvalidate:
	case wr.RKey == w.shared.Key:
		wc.Bytes = 8
	case wr.Op == verbs.OpRead:
		wc.Bytes = uint32(w.drawRead(&wr))
	case wr.Op == verbs.OpCompareSwap, wr.Op == verbs.OpFetchAdd:
		w.drawAtomic(&wr)
		wc.Bytes = 8
	default:
		wc.Bytes = uint32(w.drawData(&wr))
	}
	if wr.Flags&verbs.FlagFence != 0 {
		// Requests posted later are executed later.
		for i := range w.pending {
			w.pending[i].fenced = true
		}
	}
	if hazard := w.hazardOf(&wr); hazard != nil {
		w.pending = append(w.pending, *hazard)
	}
	w.useLentWindow(&wr, wc.Bytes)
	if wr.Flags&verbs.FlagSignaled != 0 {
		w.awaited = append(w.awaited, wc)
	}
	return wr
}

// hazardOf is the hazard that a read or atomic brings.
func (w *workload) hazardOf(wr *verbs.SendWR) *hazard {
	if wr.Op != verbs.OpRead && wr.Op != verbs.OpCompareSwap && wr.Op != verbs.OpFetchAdd || wr.RKey == w.shared.Key {
		return nil
	}
	h := &hazard{id: wr.ID}
	n := 0
	for _, e := range wr.SGL {
		off := int(e.Addr - w.local.Base)
		h.results = append(h.results, span{off, off + int(e.Length)})
		n += int(e.Length)
	}
	from := int(wr.RemoteAddr - w.remote.Base)
	h.remote = span{from, from + n}
	return h
}

// lentWindow is a window of type 2 over part of one end's memory.
type lentWindow struct {
	owner     *arena
	window    *Window
	state     lentState
	bound     uint64 // the request
	key       uint32
	part      span // of the owner's memory
	zeroBased bool
}

type lentState int

const (
	windowIdle     lentState = iota
	windowBound              // the bind is posted
	windowLent               // and complete
	windowReturned           // a send that takes it away is posted
)

// drawBind makes a bind of part of this end's memory.
func (w *workload) drawBind(wr *verbs.SendWR, l *lentWindow) {
	size := len(l.owner.Mem)
	from := w.choose.IntN(size / 4)
	l.part = span{from, from + size/4 + w.choose.IntN(size/2)}
	l.zeroBased = w.choose.IntN(2) == 0 && l.part.from%8 == 0
	l.key = verbs.NextRKey(l.window.RKey())
	wr.Op = verbs.OpBindMW
	wr.Flags = wr.Flags&^verbs.FlagSolicited | verbs.FlagSignaled
	wr.Bind = bindOf(l.window, l.owner.Region, l.key, l.part.from, l.part.to-l.part.from, peerAccess)
	if l.zeroBased {
		wr.Bind.Access |= verbs.AccessZeroBased
	}
}

// useLentWindow makes a request use the window that the peer has bound for it, if possible.
func (w *workload) useLentWindow(wr *verbs.SendWR, n uint32) {
	switch wr.Op {
	case verbs.OpWrite, verbs.OpWriteImm, verbs.OpRead, verbs.OpCompareSwap, verbs.OpFetchAdd, verbs.OpAtomicWrite:
	default:
		return
	}
	l := w.lentByPeer
	if l.state != windowLent || wr.RKey != w.remote.Key || w.choose.IntN(4) == 0 {
		return
	}
	from := int(wr.RemoteAddr - w.remote.Base)
	if from < l.part.from || from+int(n) > l.part.to {
		return
	}
	wr.RKey = l.key
	if l.zeroBased {
		wr.RemoteAddr = uint64(from - l.part.from)
	}
	w.byWindow++
}

// fenceIf sets a fence where an earlier read or atomic is concerned.
func (w *workload) fenceIf(wr *verbs.SendWR, concerned func(*hazard) bool) {
	for i := range w.pending {
		if !w.pending[i].fenced && concerned(&w.pending[i]) {
			wr.Flags |= verbs.FlagFence
			return
		}
	}
}

func (w *workload) addShared(wr *verbs.SendWR) {
	wr.RKey, wr.RemoteAddr = w.shared.Key, w.shared.Base
	wr.CompareAdd = uint64(1 + w.choose.IntN(1<<30))
	wr.SGL = []verbs.SGE{w.results.sge(0, 8)}
	w.added += wr.CompareAdd
}

// drawSpan chooses where n bytes of the remote region lie.
func (w *workload) drawSpan(n int) span {
	from := w.choose.IntN(len(w.remoteModel) - n + 1)
	return span{from, from + n}
}

// split cuts n bytes into pieces for a scatter-gather list.
func (w *workload) split(n int) []int {
	pieces := make([]int, 0, 4)
	for range w.choose.IntN(w.qp.sq.maxSGE) {
		k := w.choose.IntN(n + 1)
		pieces = append(pieces, k)
		n -= k
	}
	return append(pieces, n)
}

// drawResults chooses pieces of local memory, none over another.
func (w *workload) drawResults(wr *verbs.SendWR, n int) []span {
	pieces := w.split(n)
	at := w.choose.IntN(len(w.localModel) - n - 16*len(pieces))
	var spans []span
	for _, k := range pieces {
		at += w.choose.IntN(16)
		wr.SGL = append(wr.SGL, w.local.sge(at, k))
		spans = append(spans, span{at, at + k})
		at += k
	}
	return spans
}

func (w *workload) drawRead(wr *verbs.SendWR) int {
	wr.Op = verbs.OpRead
	n := w.sizes(w.choose)
	from := w.drawSpan(n)
	wr.RemoteAddr = w.remote.Base + uint64(from.from)
	data := w.remoteModel[from.from:from.to]
	for _, s := range w.drawResults(wr, n) {
		data = data[copy(w.localModel[s.from:s.to], data):]
	}
	return n
}

func (w *workload) drawAtomic(wr *verbs.SendWR) {
	at := w.choose.IntN(len(w.remoteModel)/8) * 8
	wr.RemoteAddr = w.remote.Base + uint64(at)
	w.fenceIf(wr, func(h *hazard) bool { return h.remote.overlaps(span{at, at + 8}) })
	word := w.remoteModel[at : at+8]
	original := binary.NativeEndian.Uint64(word)
	wr.CompareAdd = original + uint64(w.choose.IntN(2))
	wr.Swap = uint64(w.choose.IntN(1<<30))<<34 | uint64(w.choose.IntN(1<<30))
	switch {
	case wr.Op == verbs.OpFetchAdd:
		wr.CompareAdd = wr.Swap
		binary.NativeEndian.PutUint64(word, original+wr.CompareAdd)
	case wr.CompareAdd == original:
		binary.NativeEndian.PutUint64(word, wr.Swap)
	}
	var result [8]byte
	binary.NativeEndian.PutUint64(result[:], original)
	data := result[:]
	for _, s := range w.drawResults(wr, 8) {
		data = data[copy(w.localModel[s.from:s.to], data):]
	}
}

// drawData makes a send, write or atomic write.
func (w *workload) drawData(wr *verbs.SendWR) int {
	n := w.sizes(w.choose)
	if wr.Op == verbs.OpAtomicWrite {
		n = 8
	}
	wr.Imm = uint32(wr.ID) * 2654435761
	data := make([]byte, 0, n)
	var sources []span
	for _, k := range w.split(n) {
		from := w.choose.IntN(len(w.localModel) - k + 1)
		sources = append(sources, span{from, from + k})
		wr.SGL = append(wr.SGL, w.local.sge(from, k))
		data = append(data, w.localModel[from:from+k]...)
	}
	w.fenceIf(wr, func(h *hazard) bool { return h.fills(sources) })
	if n <= w.qp.sq.maxInline && w.choose.IntN(2) == 0 && !w.awaits(sources) {
		w.makeInline(wr)
	}
	switch wr.Op {
	case verbs.OpWrite, verbs.OpWriteImm, verbs.OpAtomicWrite:
		to := w.drawSpan(n)
		if wr.Op == verbs.OpAtomicWrite {
			at := w.choose.IntN(len(w.remoteModel)/8) * 8
			to = span{at, at + 8}
		}
		wr.RemoteAddr = w.remote.Base + uint64(to.from)
		w.fenceIf(wr, func(h *hazard) bool { return h.remote.overlaps(to) })
		copy(w.remoteModel[to.from:], data)
		if wr.Op == verbs.OpWriteImm {
			w.peerReceives.expect(w.peer.qp.Num(), arrival{write: true, size: n, imm: wr.Imm, hasImm: true})
		}
	default:
		m := arrival{size: n, data: data, imm: wr.Imm, hasImm: wr.Op == verbs.OpSendImm}
		if wr.Op == verbs.OpSendInvalidate {
			m.invalidates = w.lentByPeer
		}
		w.peerReceives.expect(w.peer.qp.Num(), m)
	}
	return n
}

// awaits reports whether a result is still to land in one of the spans.
func (w *workload) awaits(spans []span) bool {
	return slices.ContainsFunc(w.pending, func(h hazard) bool { return h.fills(spans) })
}

// makeInline replaces the entries by the true addresses of their bytes, without
// keys.
func (w *workload) makeInline(wr *verbs.SendWR) {
	wr.Flags |= verbs.FlagInline
	for i, e := range wr.SGL {
		if e.Length > 0 {
			off := e.Addr - w.local.Base
			wr.SGL[i] = inlineEntry(w.local.Mem[off : off+uint64(e.Length)])
		}
	}
}

// requireDone asserts that memory is what the model says and that everything
// completed.
func (w *workload) requireDone() {
	w.t.Helper()
	require.Equal(w.t, w.requests, w.posted, "requests posted")
	require.Empty(w.t, w.awaited, "completions that never came")
	require.Empty(w.t, w.send.list)
	require.True(w.t, bytes.Equal(w.localModel, w.local.Mem), "local memory differs from the model")
	require.True(w.t, bytes.Equal(w.remoteModel, w.remote.Mem), "remote memory differs from the model")
	for _, a := range []*arena{w.local, w.remote, w.results, w.shared} {
		a.requireGuards(w.t)
	}
	w.requireQuiet()
}

// arrival is a message that a receive queue is to see.
type arrival struct {
	write, hasImm bool
	size          int
	data          []byte
	imm           uint32
	invalidates   *lentWindow
}

// receiveSlots keeps a receive queue filled and checks what arrives, in the order of
// each queue pair that draws from it.
type receiveSlots struct {
	net      *network
	memory   *arena
	choose   chooser
	post     func(verbs.RecvWR) error
	slotLen  int
	slots    [][]verbs.SGE
	expected map[uint32][]arrival
	blank    []byte // a slot that holds nothing
	lazy     bool   // lets receives run out
}

const slotFill = 0x3c

func newReceiveSlots(net *network, memory *arena, c chooser, slots, maxMessage int, lazy bool, post func(verbs.RecvWR) error) *receiveSlots {
	b := &receiveSlots{
		net: net, memory: memory, choose: c, post: post, slotLen: maxMessage + 64,
		slots: make([][]verbs.SGE, slots), expected: make(map[uint32][]arrival), lazy: lazy,
	}
	b.blank = bytes.Repeat([]byte{slotFill}, b.slotLen)
	for i := range slots {
		copy(memory.Mem[i*b.slotLen:], b.blank)
		b.fill(i, maxMessage)
	}
	return b
}

// receiveSlotsLen is the memory that receive slots need.
func receiveSlotsLen(slots, maxMessage int) int { return slots * (maxMessage + 64) }

// fill posts the receive of a slot, its bytes in up to three pieces.
func (b *receiveSlots) fill(slot, n int) {
	at := slot * b.slotLen
	var sgl []verbs.SGE
	for range b.choose.IntN(3) {
		k := b.choose.IntN(n + 1)
		sgl = append(sgl, b.memory.sge(at, k))
		at += k + b.choose.IntN(32)
		n -= k
	}
	sgl = append(sgl, b.memory.sge(at, n))
	b.slots[slot] = sgl
	if err := b.post(verbs.RecvWR{ID: uint64(slot), SGL: sgl}); err != nil {
		require.NoError(b.net.t, err)
	}
}

func (b *receiveSlots) expect(qpn uint32, m arrival) { b.expected[qpn] = append(b.expected[qpn], m) }

// check looks at what a queue pair has received.
func (b *receiveSlots) check(c *completions) {
	list := c.list
	c.clear()
	for _, wc := range list {
		waiting := b.expected[wc.QPN]
		if len(waiting) == 0 {
			require.Failf(b.net.t, "nothing was sent", "%+v", wc)
		}
		m := waiting[0]
		b.expected[wc.QPN] = waiting[1:]
		want := verbs.WC{ID: wc.ID, Opcode: verbs.WCRecv, Bytes: uint32(m.size), HasImm: m.hasImm, QPN: wc.QPN}
		if m.write {
			want.Opcode = verbs.WCRecvWriteImm
		}
		if m.hasImm {
			want.Imm = m.imm
		}
		if m.invalidates != nil {
			want.InvalidatedRKey = m.invalidates.key
			m.invalidates.state = windowIdle
		}
		if wc != want {
			require.Equal(b.net.t, want, wc)
		}
		b.checkSlot(int(wc.ID), m.data)
		b.refill(int(wc.ID))
	}
}

// checkSlot compares a slot, pieces and what is between them.
func (b *receiveSlots) checkSlot(slot int, data []byte) {
	got := b.memory.Mem[slot*b.slotLen : (slot+1)*b.slotLen]
	want := bytes.Clone(b.blank)
	for _, e := range b.slots[slot] {
		off := int(e.Addr-b.memory.Base) - slot*b.slotLen
		n := min(int(e.Length), len(data))
		copy(want[off:], data[:n])
		data = data[n:]
	}
	if !bytes.Equal(want, got) {
		at := 0
		for want[at] == got[at] {
			at++
		}
		require.Failf(b.net.t, "a receive holds wrong bytes", "slot %d, list %v: byte %d is %#x, want %#x", slot, b.slots[slot], at, got[at], want[at])
	}
	copy(got, b.blank)
}

func (b *receiveSlots) refill(slot int) {
	size := b.slotLen - 64
	if !b.lazy || b.choose.IntN(2) == 0 {
		b.fill(slot, size)
		return
	}
	b.net.After(time.Duration(b.choose.IntN(40))*time.Microsecond, func() { b.fill(slot, size) })
}

func (b *receiveSlots) requireDone() {
	b.net.t.Helper()
	for qpn, waiting := range b.expected {
		require.Empty(b.net.t, waiting, "messages that queue pair %#x never received", qpn)
	}
	b.memory.requireGuards(b.net.t)
}

var errNotTaken = errors.New("a receive was not taken")

// poster posts to a receive queue.
func poster(q *RecvQueue) func(verbs.RecvWR) error {
	return func(wr verbs.RecvWR) error {
		n, err := q.Post([]verbs.RecvWR{wr})
		if err == nil && n != 1 {
			return errNotTaken
		}
		return err
	}
}
