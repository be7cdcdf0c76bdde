package transport

import (
	"slices"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// fuzzQP is a queue pair under a fuzzer, with what it has been asked for.
type fuzzQP struct {
	w    *fuzzWorld
	host *fuzzHost
	peer *fuzzQP // nil: nobody answers
	qp   *QP
	rq   *RecvQueue
	num  uint32

	requests []fuzzRequest // that are not complete
	receives []fuzzReceive // of a queue of its own
	failed   bool          // a request has
	refused  bool          // a request has been, by the peer
	received uint64        // receives that completed with success

	link        []fuzzPacket // sent and not arrived
	sent        int          // packets of the present Transmit
	writing     fuzzGrant
	used        map[uint32]bool // keys with which its peer got through
	unconfirmed uint64          // bytes of reads sent since a packet came
	executed    []fuzzExecution
}

// fuzzRequest is a posted request.
type fuzzRequest struct {
	id       uint64
	op       verbs.Opcode
	signaled bool
	length   uint32
	results  []fuzzSpan // where they go
}

// fuzzReceive is a posted receive.
type fuzzReceive struct {
	id    uint64
	spans []fuzzSpan // nothing, where it names memory that it must not
	bytes uint32
}

// fuzzPacket is a packet on its way.
type fuzzPacket struct {
	wire.Packet
	payload []byte
}

// fuzzSends and fuzzRecvs take the completions of a queue pair.
type (
	fuzzSends struct{ *fuzzQP }
	fuzzRecvs struct{ *fuzzQP }
)

func (q fuzzSends) Complete(wc verbs.WC, frees QueueEntries, _ bool) {
	frees.Free()
	// Those without a signal complete in silence.
	i := 0
	for i < len(q.requests) && q.requests[i].id != wc.ID && !q.requests[i].signaled {
		i++
	}
	if i == len(q.requests) || q.requests[i].id != wc.ID || wc.QPN != q.num {
		q.w.fail("completion %+v of queue pair %#x, in which are posted %+v", wc, q.num, q.requests)
	}
	r := q.requests[i]
	q.requests = slices.Delete(q.requests, 0, i+1)
	if wc.Status == verbs.StatusSuccess {
		if wc.Bytes != r.length || wc.Opcode != CompletionOpcodes[r.op] || !r.signaled {
			q.w.fail("completion %+v of request %+v", wc, r)
		}
	}
	refused := slices.Contains(nakStatus[wire.NakInvalidRequest:], wc.Status)
	if q.failed && wc.Status != verbs.StatusFlushed && (!refused || q.refused) {
		q.w.fail("completion %+v after a failure", wc)
	}
	q.failed, q.refused = wc.Status != verbs.StatusSuccess, q.refused || refused
}

func (q fuzzRecvs) Complete(wc verbs.WC, frees QueueEntries, _ bool) {
	frees.Free()
	list := q.receiveList()
	i := slices.IndexFunc(*list, func(r fuzzReceive) bool { return r.id == wc.ID })
	if i < 0 || i > 0 && !q.rq.shared || wc.QPN != q.num {
		q.w.fail("completion %+v of queue pair %#x, in which are posted %+v", wc, q.num, *list)
	}
	r := (*list)[i]
	*list = slices.Delete(*list, i, i+1)
	if wc.Status != verbs.StatusSuccess {
		return
	}
	q.received++
	header := uint32(0)
	if q.qp.kind == verbs.UD {
		header = verbs.GRHLen
	}
	if wc.Opcode == verbs.WCRecv && (wc.Bytes > r.bytes || wc.Bytes < header || wc.HasGRH != (header > 0)) {
		q.w.fail("completion %+v of a receive of %d bytes", wc, r.bytes)
	}
}

// receiveList are the receives that the queue pair may complete.
func (q *fuzzQP) receiveList() *[]fuzzReceive {
	if q.rq.shared {
		return &q.host.receives
	}
	return &q.receives
}

// event checks what the queue pair says of itself.
func (q *fuzzQP) event(v verbs.EventType) {
	switch v {
	case verbs.EventQPLastWQEReached:
		if !q.rq.shared || q.qp.state != verbs.QPError {
			q.w.fail("event %v in state %v, shared receive queue: %v", v, q.qp.state, q.rq.shared)
		}
	case verbs.EventQPAccessError, verbs.EventQPRequestError, verbs.EventQPFatal:
		if q.qp.state != verbs.QPError {
			q.w.fail("event %v in state %v", v, q.qp.state)
		}
	}
}

// fuzzAH leads datagrams where the queue pair's other packets go.
type fuzzAH struct{ *fuzzQP }

func (fuzzAH) Close() error { return nil }

func (q *fuzzQP) checkAH(ah verbs.AH, _ uint32) error {
	if ah != (fuzzAH{q}) {
		return errTestAH
	}
	return nil
}

// Send takes a packet that the queue pair sends, and looks whether it may.
func (q *fuzzQP) Send(p *wire.Packet, pieces [][]byte, n int) bool {
	q.sent++
	if len(pieces) > 0 && size(pieces) != uint32(n) || len(pieces) == 0 && n != 0 || p.Pad != uint8(-n&3) || !p.Opcode.HasPayload() && n > 0 {
		q.w.fail("%v with %d bytes, said to be %d, and %d of padding", p.Opcode, size(pieces), n, p.Pad)
	}
	if p.Opcode.Service() != q.qp.service && p.Opcode != wire.CNP || uint32(n) > max(q.qp.largest, q.qp.mtu) {
		q.w.fail("%v with %d bytes", p.Opcode, n)
	}
	for _, b := range pieces {
		if len(b) == 0 {
			continue
		}
		if p.Opcode.IsReadResponse() {
			if !q.host.readable(q.qp, b) {
				q.w.fail("%v with %d bytes that the peer must not read", p.Opcode, len(b))
			}
		} else if r, _ := q.host.whose(b); r == nil && len(b) > fuzzInline || r != nil && (r.closed || r.Domain != testDomain) {
			q.w.fail("%v with %d bytes that the program must not send", p.Opcode, len(b))
		}
	}
	if p.Opcode.IsReadResponse() {
		if q.unconfirmed += uint64(n); q.unconfirmed > maxUnconfirmed+MaxLargePacket {
			q.w.fail("%d bytes to a silent peer", q.unconfirmed)
		}
	}
	if q.peer == nil || len(q.link) == cap(q.link) {
		return true // lost
	}
	q.link = append(q.link, fuzzPacket{*p, q.w.keep(pieces, n)})
	return true
}

// transmit sends at most so many packets, and reports whether more could leave.
func (q *fuzzQP) transmit(budget int) bool {
	q.sent = 0
	more := q.qp.Transmit(q, q.w.now, budget)
	if q.sent > budget {
		q.w.fail("%d packets, for a budget of %d", q.sent, budget)
	}
	for i := range q.host.windows {
		if w := &q.host.windows[i]; w.last.qp != nil && w.last.qp != q.qp && w.qp != w.last.qp {
			q.w.fail("queue pair %#x has taken away window %d of another", q.num, i)
		}
	}
	q.host.checkWindows()
	return more
}

// mayUse reports whether the peer's host may use a key that grants what it wants, and
// remembers that it has.
func (q *fuzzQP) mayUse(key uint32) bool {
	if q.qp.guard == nil {
		return true
	}
	q.used[key] = q.used[key] || q.host.guard.open
	return q.used[key]
}

// permit notes what a packet may change.
func (q *fuzzQP) permit(p *wire.Packet, n int) {
	h := q.host
	h.allowed, h.w.watched = h.allowed[:0], false
	if p.Opcode.Service() != q.qp.service || !q.qp.receiving() {
		return
	}
	op := p.Opcode.Operation()
	switch op {
	case wire.RCReadResponseFirst, wire.RCReadResponseMiddle, wire.RCReadResponseLast, wire.RCReadResponseOnly, wire.RCAtomicAcknowledge:
		q.permitResults(op)
		return
	}
	if q.qp.kind == verbs.RC && p.PSN != q.qp.expected || q.qp.kind == verbs.UD && p.DETH.QKey != q.qp.attr.QKey {
		return
	}
	switch op {
	case wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLast, wire.RCSendLastImm, wire.RCSendOnly, wire.RCSendOnlyImm,
		wire.RCSendLastInvalidate, wire.RCSendOnlyInvalidate:
		list := *q.receiveList()
		if !q.rq.shared {
			list = list[:min(len(list), 1)]
		}
		for _, r := range list {
			q.host.allow(r.spans)
		}
	case wire.RCWriteFirst, wire.RCWriteOnly, wire.RCWriteOnlyImm:
		q.writing = h.grantFor(q, p)
		fallthrough
	case wire.RCWriteMiddle, wire.RCWriteLast, wire.RCWriteLastImm:
		if q.writing.holds() {
			h.w.watched = true
			// The bytes of this packet, and no others.
			s := q.writing.span
			s.n = min(s.n, n)
			q.writing.span.off, q.writing.span.n = s.off+s.n, q.writing.span.n-s.n
			h.allowed = append(h.allowed, s)
		}
	case wire.RCReadRequest:
		if _, _, ok := h.granted(q.qp, p.RETH.RKey, p.RETH.VA, uint64(p.RETH.Length), verbs.AccessRemoteRead); ok {
			q.mayUse(p.RETH.RKey)
		}
	case wire.RCAtomicWrite:
		s, _, ok := h.granted(q.qp, p.RETH.RKey, p.RETH.VA, 8, verbs.AccessRemoteWrite)
		if ok && q.mayUse(p.RETH.RKey) && s.off%8 == 0 && p.RETH.VA%8 == 0 && n == 8 && p.RETH.Length == 8 && q.qp.attr.Access&verbs.AccessRemoteWrite != 0 {
			h.w.watched = true
			h.allowed = append(h.allowed, s)
		}
	case wire.RCCompareSwap, wire.RCFetchAdd:
		s, _, ok := h.granted(q.qp, p.Atomic.RKey, p.Atomic.VA, 8, verbs.AccessRemoteAtomic)
		if ok && q.mayUse(p.Atomic.RKey) && s.off%8 == 0 && p.Atomic.VA%8 == 0 && q.qp.attr.Access&verbs.AccessRemoteAtomic != 0 {
			h.w.watched = true
			h.allowed = append(h.allowed, s)
		}
	}
}

// permitResults allows the result of the oldest read or atomic. Before it may lie others in
// the list that have completed without a signal.
func (q *fuzzQP) permitResults(op wire.Opcode) {
	for i := range q.requests {
		switch r := &q.requests[i]; r.op {
		case verbs.OpRead, verbs.OpCompareSwap, verbs.OpFetchAdd:
			if (r.op == verbs.OpRead) == (op != wire.RCAtomicAcknowledge) {
				q.host.allow(r.results)
			}
			if r.signaled {
				return
			}
		}
	}
}

// deliver hands a packet to the queue pair, whole or in two pieces.
func (q *fuzzQP) deliver(p wire.Packet, payload []byte, pieces, marked bool) {
	w := q.w
	if len(payload) <= cap(w.scratch) {
		payload = append(w.scratch[:0], payload...) // belongs to the link
	}
	if !p.Opcode.HasPayload() {
		payload = nil
	}
	p.Payload = payload
	q.permit(&p, len(payload))
	q.unconfirmed = 0
	expected, responses := q.qp.expected, q.qp.responses.Len()
	if marked {
		q.qp.Marked(&p, w.now)
	}
	switch {
	case q.qp.kind == verbs.UD && !marked:
		header := testHeader
		q.qp.ReceiveDatagram(&p, &header, uint16(len(payload)))
		clear(header[:])
	case pieces:
		p.Payload = nil
		half := len(payload) / 3
		q.qp.ReceivePieces(&p, q.qp.PathMTU(), [][]byte{payload[:half], payload[half:]}, nil, w.now)
	default:
		q.qp.Receive(&p, w.now)
	}
	if len(payload) <= cap(w.scratch) {
		for i := range payload {
			payload[i] = 0xee
		}
	}
	q.host.check()
	q.checkRevoked(&p)
	q.checkRepeated(&p, expected, responses)
	q.checkBounds()
}

// checkRevoked fails if a packet has taken away a window that was not its to take.
func (q *fuzzQP) checkRevoked(p *wire.Packet) {
	for i := range q.host.windows {
		w := &q.host.windows[i]
		before := w.last
		if !w.see() {
			continue
		}
		if w.region != nil || !p.Opcode.HasIETH() || p.InvalidateRKey != before.key || before.qp != q.qp || w.Type != verbs.MWType2 {
			q.w.fail("%v has changed window %d from %+v to %+v", p.Opcode, i, before, w.last)
		}
	}
}

// checkBounds fails if the queue pair holds more than it may, or its numbers are out of order.
func (q *fuzzQP) checkBounds() {
	t := q.qp
	if t.responses.Len() > max(t.responses.Depth(), 0) || t.sq.Len() > t.sq.Depth() || t.executed.Len() > t.executed.Depth() || t.rq.Len() > t.rq.Depth() {
		q.w.fail("queue pair %#x holds too much", q.num)
	}
	receives := t.rq.Len() + t.receives.Len()
	if t.inReceive {
		receives++
	}
	if t.sq.taken != t.sq.Len()+t.sends.Len() || t.sq.taken > t.sq.depth || t.rq.taken > t.rq.depth || t.rq.taken < receives || !t.rq.shared && t.rq.taken > receives {
		q.w.fail("queue pair %#x has %d and %d places taken", q.num, t.sq.taken, t.rq.taken)
	}
	if t.kind != verbs.RC {
		return
	}
	diff := wire.PSNDiff
	if diff(t.maxPSN, t.unaPSN) < 0 || diff(t.sendPSN, t.unaPSN) < 0 || diff(t.sendPSN, t.maxPSN) > 0 {
		q.w.fail("numbers of queue pair %#x: una %#x, send %#x, max %#x", q.num, t.unaPSN, t.sendPSN, t.maxPSN)
	}
}
