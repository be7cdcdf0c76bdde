package transport

import (
	"encoding/binary"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/dma"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// expectsResponse reports whether a response to psn can be expected. Any other is late, a
// duplicate or forged.
func (q *QP) expectsResponse(psn uint32) bool {
	return q.sending() && wire.PSNDiff(psn, q.unaPSN) >= 0 && wire.PSNDiff(psn, q.maxPSN) < 0 &&
		(!q.pendingNak.set() || wire.PSNDiff(psn, q.pendingNak.psn) <= 0) // nothing after a refusal is answered
}

func (q *QP) receiveAck(p *wire.Packet, now time.Duration) {
	syndrome := p.AETH.Syndrome
	if !q.expectsResponse(p.PSN) || q.pendingNak.matches(p.PSN) && !syndrome.IsFatal() {
		q.counters.UnexpectedResponses++
		return
	}
	q.unconfirmed = 0
	if q.adapts {
		q.noteResponse(now)
	}
	q.measure(p.PSN, now)
	switch syndrome.Kind() {
	case wire.KindAck:
		probed := q.oldestProbed && p.PSN == q.unaPSN
		if q.acknowledge(wire.PSNAdd(p.PSN, 1), now) && probed {
			q.probeAcked(now)
		}
	case wire.KindRNRNak:
		q.receiveRNRNak(p.PSN, syndrome.Timer(), now)
	case wire.KindNak:
		if syndrome.IsFatal() {
			q.receiveFatalNak(p.PSN, nakStatus[syndrome.Code()], now)
			return
		}
		if q.acknowledge(p.PSN, now) && syndrome.Code() == wire.NakSequence {
			q.counters.SequenceNaks++
			if q.rnrUntil == 0 { // otherwise the NAK is late, or a duplicate
				q.retry(p.PSN, gapCost, now)
			}
		}
	}
}

func (q *QP) receiveRNRNak(psn uint32, timer uint8, now time.Duration) {
	q.counters.RNRNaksReceived++
	q.rnrReceived++
	if q.rnrUntil != 0 || !q.acknowledge(psn, now) {
		return
	}
	if q.rnrRetries == 0 {
		q.counters.RNRRetryExceeded++
		q.failRequest(verbs.StatusRNRRetryExceeded)
		return
	}
	wait := wire.RNRTimer(timer)
	if q.attr.RNRRetry != verbs.InfiniteRNRRetry {
		q.rnrRetries--
	} else {
		wait = max(wait, q.sharedRNRWait(now))
	}
	q.alive()
	q.stuck = 0 // waiting for a receive is not being stuck
	q.rnrUntil = now + wait
	q.ackDeadline = 0
	q.rewind(psn)
}

// acknowledge completes the requests before upTo. If a read or atomic among them has no
// response, that response was lost: acknowledge rewinds to the gap and reports false.
func (q *QP) acknowledge(upTo uint32, now time.Duration) bool {
	before := q.unaPSN
	// Compare distances from the oldest packet: a long message can take half of all sequence
	// numbers, too many for a signed difference.
	end := wire.PSNAdd(upTo, -int(before))
	for q.sq.head != q.sq.tail {
		w := q.sq.at(q.sq.head)
		if w.local() {
			if !w.executed || w.fault != verbs.StatusSuccess {
				break
			}
			q.complete()
			continue
		}
		if w.responds() {
			missing := wire.PSNAdd(w.first, int(w.got>>q.mtuShift))
			if wire.PSNAdd(missing, -int(before)) >= end {
				break
			}
			if missing != before {
				q.unaPSN = missing
				q.noteProgress(before, now)
			}
			q.responseLost(missing, upTo, now)
			return false
		}
		if wire.PSNAdd(w.last, -int(before)) >= end {
			break
		}
		q.complete()
	}
	if end > 0 {
		q.unaPSN = upTo
		q.noteProgress(before, now)
	}
	return true
}

// responseLost asks again for the response at psn, because a later response, or an
// acknowledgement of one, has come: that of seen. It does so once in a round. If the response
// right after the missing one comes again, the next round has lost the missing one too.
func (q *QP) responseLost(psn, seen uint32, now time.Duration) {
	known := q.gapPSN == psn && q.gapKnown
	next := seen == wire.PSNAdd(psn, 1)
	again := next && q.gapPSN == psn && q.gapNext
	if !known || again {
		q.retry(psn, gapCost, now)
	}
	q.gapNext = next || q.gapPSN == psn && q.gapNext
	q.gapPSN, q.gapKnown = psn, true
}

// noteProgress is called when unaPSN has moved on from before.
func (q *QP) noteProgress(before uint32, now time.Duration) {
	q.progressed()
	q.endRNRWait()
	if q.adapts {
		q.noteOldestAcked()
	}
	q.gapKnown = false
	q.readsSent = max(q.readsSent-q.responseEnds.drop(q.unaPSN), 0)
	q.growWindow(int(wire.PSNDiff(q.unaPSN, before)), int(wire.PSNDiff(q.sendPSN, before)), now)
	if wire.PSNDiff(q.unaPSN, q.sendPSN) > 0 {
		q.rewind(q.unaPSN)
	}
	q.armAckTimer(now)
}

// complete retires the oldest request with success.
func (q *QP) complete() {
	w := q.sq.pop()
	if w.local() {
		q.sendIdx = max(q.sendIdx, q.sq.head) // a rewind may have left it here
	}
	switch w.wr.Op {
	case verbs.OpSend, verbs.OpSendImm, verbs.OpSendInvalidate:
		q.counters.Sends++
	}
	if !w.local() {
		q.noteSent(w.wr.Op, w.length)
	}
	frees := q.sends.Add()
	if !q.signalAll && w.wr.Flags&verbs.FlagSignaled == 0 {
		return
	}
	q.sendCQ.Complete(verbs.WC{ID: w.wr.ID, Opcode: CompletionOpcodes[w.wr.Op], Bytes: w.length, QPN: q.num}, frees, false)
}

// CompletionOpcodes are the opcodes of completions of send requests.
var CompletionOpcodes = [...]verbs.WCOpcode{
	verbs.OpSend:        verbs.WCSend,
	verbs.OpSendImm:     verbs.WCSend,
	verbs.OpWrite:       verbs.WCWrite,
	verbs.OpWriteImm:    verbs.WCWrite,
	verbs.OpRead:        verbs.WCRead,
	verbs.OpCompareSwap: verbs.WCCompareSwap,
	verbs.OpFetchAdd:    verbs.WCFetchAdd,

	verbs.OpSendInvalidate:  verbs.WCSend,
	verbs.OpLocalInvalidate: verbs.WCLocalInvalidate,
	verbs.OpBindMW:          verbs.WCBindMW,
	verbs.OpAtomicWrite:     verbs.WCAtomicWrite,
}

// retireExecuted completes the oldest requests as long as they are executed ones without
// packets.
func (q *QP) retireExecuted() {
	for q.sq.head != q.sq.tail {
		w := q.sq.at(q.sq.head)
		if !w.executed || w.fault != verbs.StatusSuccess {
			return
		}
		q.complete()
	}
}

// responseTo returns the request of a response at psn, or nil if that is not the next response
// awaited.
func (q *QP) responseTo(psn uint32, now time.Duration) *sendWQE {
	if !q.expectsResponse(psn) || q.pendingNak.matches(psn) {
		q.counters.UnexpectedResponses++
		return nil
	}
	q.unconfirmed = 0
	if q.adapts {
		q.noteResponse(now)
	}
	if !q.acknowledge(psn, now) || q.sq.head == q.sq.tail {
		return nil
	}
	q.measure(psn, now)
	w := q.sq.at(q.sq.head)
	if !w.responds() || wire.PSNAdd(w.first, int(w.got>>q.mtuShift)) != psn {
		q.counters.UnexpectedResponses++
		return nil
	}
	return w
}

func (q *QP) receiveRead(p *wire.Packet, now time.Duration) {
	w := q.responseTo(p.PSN, now)
	if w == nil {
		return
	}
	switch w.wr.Op {
	case verbs.OpRead:
	case verbs.OpAtomicWrite:
		q.receiveAtomicWritten(p, w, now)
		return
	default:
		q.counters.UnexpectedResponses++
		return
	}
	n, left := q.payloadLen, w.length-w.got
	index := int(wire.PSNAdd(p.PSN, -int(w.first)))
	// If a read takes several request packets, none of them crosses a multiple of
	// q.readPackets.
	whole := n == left || n >= q.mtu && n&(q.mtu-1) == 0
	packets := q.packetsOf(n)
	if n > left || n > q.payloadMax || !whole || index&(q.readPackets-1)+packets > q.readPackets {
		q.failRequest(verbs.StatusBadResponse)
		return
	}
	got, fault := w.got, dma.NoFault
	for _, part := range q.payload {
		if fault = w.segs.Scatter(got, part); fault != dma.NoFault {
			break
		}
		got += uint32(len(part))
	}
	q.unreadable = fault == dma.SourceFault
	if q.payloadChanged() {
		return
	}
	if fault != dma.NoFault {
		q.failRequest(verbs.StatusLocalProtectionError)
		return
	}
	w.got = got
	q.advance(w, wire.PSNAdd(p.PSN, packets-1), now)
}

// receiveAtomicWritten handles the response to an atomic write: that to a read of no bytes.
func (q *QP) receiveAtomicWritten(p *wire.Packet, w *sendWQE, now time.Duration) {
	if p.Opcode != wire.RCReadResponseOnly || q.payloadLen != 0 || p.AETH.Syndrome.Kind() != wire.KindAck {
		q.failRequest(verbs.StatusBadResponse)
		return
	}
	q.advance(w, p.PSN, now)
}

func (q *QP) receiveAtomic(p *wire.Packet, now time.Duration) {
	w := q.responseTo(p.PSN, now)
	if w == nil {
		return
	}
	if w.wr.Op != verbs.OpCompareSwap && w.wr.Op != verbs.OpFetchAdd {
		q.counters.UnexpectedResponses++
		return
	}
	if p.AETH.Syndrome.Kind() != wire.KindAck {
		q.failRequest(verbs.StatusBadResponse)
		return
	}
	binary.NativeEndian.PutUint64(q.scratch[:], p.AtomicAck)
	if w.segs.Scatter(0, q.scratch[:]) != dma.NoFault {
		q.failRequest(verbs.StatusLocalProtectionError)
		return
	}
	q.advance(w, p.PSN, now)
}

// advance moves past the response at psn, whose data are in place.
func (q *QP) advance(w *sendWQE, psn uint32, now time.Duration) {
	before := q.unaPSN
	q.unaPSN = wire.PSNAdd(psn, 1)
	if psn == w.last {
		q.complete()
		q.retireExecuted()
		if q.pendingNak.set() && q.failNakedRequest() {
			return
		}
	}
	q.noteProgress(before, now)
}
