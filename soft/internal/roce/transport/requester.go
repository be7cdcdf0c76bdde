package transport

import (
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// requester is the sending half of a queue pair. Sequence numbers are in the order una ≤ send
// ≤ max ≤ next. Those below una are acknowledged, those below max have been sent at least
// once, and those below next belong to posted requests. A rewind moves send back.
type requester struct {
	nextPSN uint32 // of the next request posted
	unaPSN  uint32 // oldest not acknowledged
	sendPSN uint32 // next to be sent
	maxPSN  uint32 // next that was never sent
	sendIdx uint64 // the index of the request that sendPSN belongs to

	readsSent           int // read and atomic requests sent whose responses are not complete
	responseEnds        responseEnds
	congestionWindow    int // packets allowed under way
	maxCongestionWindow int // the most that congestion grows to
	steady              steadiness

	sinceAckReq int // packets sent since one last asked for an acknowledgement
}

const (
	// A long read is split into several requests, so that its responses, which nothing
	// acknowledges, cannot exceed the window. The first and the last response to a request
	// have one header more than the others, and cannot be in one train of packets with them,
	// so small requests make short trains.
	//
	// At first, a request asks for at most firstReadBytes and maxFirstRead packets. On a
	// steady path, it asks for at most readBytes, maxReadPackets and half of the window. If
	// the window is smaller than that, it asks for the window or shortRead packets. It exceeds
	// the window by less than shortRead. With congestion control, it asks for at most
	// shortRead packets.
	firstReadBytes = 128 << 10
	maxFirstRead   = 64
	readBytes      = 512 << 10
	maxReadPackets = 512
	shortRead      = 32
	// firstWindow is the congestion window before anything is known of the path, in packets of
	// the path MTU.
	firstWindow = 64
	minWindow   = 4
	// ackInterval is how many packets of a long message may leave before one asks for an
	// acknowledgement; where the path is steady it is up to 2^maxLevel times as many, or
	// maxAckBytes, whichever is less.
	ackInterval = 32
	maxAckBytes = 256 << 10
)

func (q *QP) startRequester() {
	psn := q.attr.SQPSN
	q.nextPSN, q.unaPSN, q.sendPSN, q.maxPSN = psn, psn, psn, psn
	q.sendIdx = q.sq.head
	q.maxInitRead = q.attr.MaxInitReadAtomic
	q.startWindow()
	q.responseEnds.ends.depth = 2 * q.maxInitRead
	q.progressed()
	q.adaptive = adaptive{}
	q.adapts = q.mayAdapt && !q.lossless
	if q.asAdapter {
		q.adapts = q.adapts && q.ackTimeout != 0 && q.attr.RetryCount != 0
	}
	q.credit = q.window
}

// startWindow resets the congestion window to that of an unknown path.
func (q *QP) startWindow() {
	q.maxCongestionWindow = max(q.window/int(q.mtu), 2*minWindow)
	q.congestionWindow, q.steady = min(firstWindow, q.maxCongestionWindow), steadiness{}
	q.control.Start(q.congestionWindow, q.maxCongestionWindow)
}

// sendRequests sends requests as far as the window, the limit of outstanding reads and the
// budget allow. It returns the rest of the budget, and whether the budget alone stopped it.
func (q *QP) sendRequests(out Output, now time.Duration, budget int) (left int, more bool) {
	if !q.sending() || q.rnrUntil != 0 {
		return budget, false
	}
	if q.probe != noProbe {
		if budget <= 0 {
			return budget, true
		}
		budget--
		q.sendProbe(out, now)
	}
	for q.sendIdx != q.sq.tail {
		w := q.sq.at(q.sendIdx)
		if w.executed && w.fault == verbs.StatusSuccess {
			q.sendIdx++
			continue
		}
		if q.state == verbs.QPSendQueueDrained && wire.PSNDiff(w.first, q.maxPSN) >= 0 {
			return budget, false
		}
		if q.pendingNak.set() && wire.PSNDiff(q.sendPSN, q.pendingNak.psn) >= 0 {
			return budget, false
		}
		if w.fault != verbs.StatusSuccess {
			// The request fails when all before it are complete.
			if q.sendIdx == q.sq.head {
				q.failRequest(w.fault)
			}
			return budget, false
		}
		if w.wr.Flags&verbs.FlagFence != 0 && q.sendPSN == w.first && (q.held.ahead != 0 || q.readsOutstanding()) {
			return budget, false
		}
		if w.responds() && (q.readsSent >= q.maxInitRead || q.sendPSN == q.maxPSN && q.responseEnds.ends.Full()) {
			return budget, false
		}
		if w.local() {
			if budget <= 0 {
				return budget, true
			}
			budget--
			if q.execute(w) {
				q.sendIdx++
				q.retireExecuted()
			}
			continue
		}
		underWay := int(wire.PSNDiff(q.sendPSN, q.unaPSN))
		room := q.congestionWindow - underWay
		if room <= 0 || w.wr.Op == verbs.OpRead && room < q.readPackets && room < q.leastRead(w, underWay) || q.mustWait(now) {
			return budget, false
		}
		if budget <= 0 {
			return budget, true
		}
		budget--
		if !q.sendRequest(out, w, q.largest, now) {
			continue
		}
		if wire.PSNDiff(q.sendPSN, w.last) > 0 {
			q.sendIdx++
		}
	}
	return budget, false
}

// sending reports whether requests may leave. In SQD, only requests that were begun before
// may, and their repetitions (IBTA 10.3.1.6).
func (q *QP) sending() bool {
	return q.state == verbs.QPReadyToSend || q.state == verbs.QPSendQueueDrained
}

func (q *QP) readsOutstanding() bool {
	for i := q.sq.head; i != q.sendIdx; i++ {
		if q.sq.at(i).responds() {
			return true
		}
	}
	return false
}

// sendRequest sends the packet at sendPSN and moves past it. It reports false if the request
// has a fault.
func (q *QP) sendRequest(out Output, w *sendWQE, largest uint32, now time.Duration) bool {
	p := &q.packet
	p.Begin(wire.DefaultPKey, q.attr.DestQPN, q.sendPSN)
	index := uint32(wire.PSNDiff(q.sendPSN, w.first))
	off := index << q.mtuShift
	advance := 1
	n := uint32(0)
	var pieces [][]byte
	switch w.wr.Op {
	case verbs.OpRead:
		advance = q.readNext(w)
		p.Opcode = wire.RCReadRequest
		p.AckReq = true
		p.RETH = wire.RETH{VA: w.wr.RemoteAddr + uint64(off), RKey: w.wr.RKey, Length: min(uint32(advance)<<q.mtuShift, w.length-off)}
		q.readsSent++
	case verbs.OpCompareSwap, verbs.OpFetchAdd:
		p.Opcode = wire.RCFetchAdd
		p.Atomic = wire.AtomicETH{VA: w.wr.RemoteAddr, RKey: w.wr.RKey, SwapAdd: w.wr.CompareAdd}
		if w.wr.Op == verbs.OpCompareSwap {
			p.Opcode = wire.RCCompareSwap
			p.Atomic.SwapAdd, p.Atomic.Compare = w.wr.Swap, w.wr.CompareAdd
		}
		p.AckReq = true
		q.readsSent++
	case verbs.OpAtomicWrite:
		var ok bool
		if pieces, n, ok = q.fillData(p, w, 0, q.mtu); !ok {
			q.noteFault(w)
			return false
		}
		p.AckReq = true
		q.readsSent++
	default:
		underWay := int(wire.PSNDiff(q.sendPSN, q.unaPSN))
		if room := q.congestionWindow - underWay; room < int(largest>>q.mtuShift) {
			largest = uint32(max(room, 1)) << q.mtuShift
		}
		var ok bool
		if pieces, n, ok = q.fillData(p, w, index, largest); !ok {
			q.noteFault(w)
			return false
		}
		advance = q.packetsOf(n)
		last := wire.PSNAdd(q.sendPSN, advance-1) == w.last
		q.sinceAckReq += advance
		p.AckReq = q.sinceAckReq >= q.ackReqInterval() ||
			last && (q.signalAll || w.wr.Flags&verbs.FlagSignaled != 0 || q.nothingFollows()) ||
			underWay+advance >= q.congestionWindow
	}
	p.Opcode, p.SRQN = p.Opcode.On(q.service), w.wr.RemoteSRQN
	if p.AckReq {
		q.sinceAckReq = 0
	}
	if !out.Send(p, pieces, int(n)) {
		q.noteFault(w)
		return false
	}
	q.notePacketSent(p, advance, now)
	q.scheduleNext(advance, now)
	q.sendPSN = wire.PSNAdd(q.sendPSN, advance)
	if wire.PSNDiff(q.sendPSN, q.maxPSN) > 0 {
		q.maxPSN = q.sendPSN
	}
	if w.responds() {
		q.responseEnds.add(q.sendPSN)
	}
	if q.ackDeadline == 0 {
		q.armAckTimer(now)
	}
	return true
}

// readNext returns how many response packets the read request at sendPSN asks for. A probe
// asks for all that an earlier request did, since no other request follows it until a
// time-out.
func (q *QP) readNext(w *sendWQE) int {
	index := int(wire.PSNAdd(q.sendPSN, -int(w.first)))
	piece := min(q.firstRead<<q.steady.level, q.readPackets)
	window := max(min(q.firstRead, q.congestionWindow), q.congestionWindow/2, shortRead)
	n := min(piece-index&(piece-1), q.packets(w)-index, window)
	if end, ok := q.responseEnds.end(q.sendPSN); ok {
		n = int(wire.PSNDiff(end, q.sendPSN))
	}
	if q.controlled && !q.probing && !q.responseEnds.ends.Full() {
		n = min(n, shortRead, max(q.congestionWindow/2, 1))
	}
	return n
}

// leastRead returns how much room in the window the next request of a read needs to leave.
// Without congestion control, that is all that it asks for but shortRead-1 packets. With
// congestion control, a window with room for two requests of full length may be exceeded by
// one. A smaller window may not: the request waits until half of it is free. Otherwise,
// requests for a packet each would use the window up.
func (q *QP) leastRead(w *sendWQE, underWay int) int {
	switch {
	case !q.controlled && q.sinceAckReq >= underWay: // no acknowledgement is due that would free more
		return 1
	case !q.controlled:
		return max(min(q.readNext(w), q.congestionWindow)-shortRead+1, 1)
	case q.congestionWindow >= 2*shortRead:
		return 1
	}
	return min(q.readNext(w), q.congestionWindow)
}

// ackReqInterval returns how many packets may leave before one asks for an acknowledgement. It is
// at most half of the window, so that the other half is under way when the acknowledgement
// comes.
func (q *QP) ackReqInterval() int {
	n := ackInterval
	if !q.controlled { // congestion control acts on acknowledgements
		n = max(min(n<<q.steady.level, maxAckBytes>>q.mtuShift), n)
	}
	return min(n, max(q.congestionWindow/2, 1))
}

// fillData makes the packet with that index of a send, write or atomic write and returns its payload, of at
// most largest bytes. It reports false if memory was closed since the request was posted.
func (q *QP) fillData(p *wire.Packet, w *sendWQE, index, largest uint32) (pieces [][]byte, n uint32, ok bool) {
	off := index << q.mtuShift
	n = min(w.length-off, largest)
	if pieces, ok = w.segs.Gather(q.pieces[:0], off, n, &q.bounce); !ok {
		return nil, 0, false
	}
	if cap(pieces) > cap(q.pieces) {
		q.pieces = pieces
	}
	last := off+n == w.length
	p.Opcode = dataOpcode(w.wr.Op, index == 0, last).On(q.service)
	p.Imm, p.InvalidateRKey = w.wr.Imm, w.wr.InvalidateRKey
	p.RETH = wire.RETH{VA: w.wr.RemoteAddr, RKey: w.wr.RKey, Length: w.length}
	p.Solicited = last && w.wr.Flags&verbs.FlagSolicited != 0 && w.wr.Op != verbs.OpWrite && w.wr.Op != verbs.OpAtomicWrite
	p.Pad = uint8(-n & 3)
	return pieces, n, true
}

// nothingFollows reports whether the next request cannot ask for an acknowledgement: there is
// none, it has a fault, or it has no packets.
func (q *QP) nothingFollows() bool {
	next := q.sendIdx + 1
	if next == q.sq.tail {
		return true
	}
	w := q.sq.at(next)
	return w.fault != verbs.StatusSuccess || w.local()
}

// dataOpcodes are the opcodes of the packets of a request on a reliable connection.
var dataOpcodes = [...]struct{ first, middle, last, only wire.Opcode }{
	verbs.OpSend:           {wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLast, wire.RCSendOnly},
	verbs.OpSendImm:        {wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLastImm, wire.RCSendOnlyImm},
	verbs.OpSendInvalidate: {wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLastInvalidate, wire.RCSendOnlyInvalidate},
	verbs.OpWrite:          {wire.RCWriteFirst, wire.RCWriteMiddle, wire.RCWriteLast, wire.RCWriteOnly},
	verbs.OpWriteImm:       {wire.RCWriteFirst, wire.RCWriteMiddle, wire.RCWriteLastImm, wire.RCWriteOnlyImm},
	verbs.OpAtomicWrite:    {only: wire.RCAtomicWrite},
}

// dataOpcode returns the opcode of one packet of a send, write or atomic write on a reliable
// connection.
func dataOpcode(op verbs.Opcode, first, last bool) wire.Opcode {
	o := &dataOpcodes[op]
	switch {
	case first && last:
		return o.only
	case first:
		return o.first
	case last:
		return o.last
	}
	return o.middle
}

// failRequest completes the oldest request with an error and puts the queue
// pair in error.
func (q *QP) failRequest(status verbs.Status) {
	if q.sq.head != q.sq.tail {
		q.failSend(status)
	}
	q.fail()
}

// PeerGone says that the peer's queue pair is gone for good. That can be known only if both
// are on the same machine. The oldest request fails with StatusRetryExceeded, as it would
// after all retries, and everything else is flushed. PeerGone does nothing on an unreliable
// connection, and only reports it after ActAsAdapter if no request is outstanding.
func (q *QP) PeerGone() {
	if !q.reliable {
		return
	}
	switch q.state {
	case verbs.QPReadyToReceive, verbs.QPReadyToSend, verbs.QPSendQueueDrained:
	default:
		return
	}
	q.event(verbs.EventPeerGone)
	switch {
	case q.sq.head != q.sq.tail:
		q.retryExceeded()
	case !q.asAdapter:
		q.fail()
	}
}

// ActAsAdapter makes a reliable queue pair do what programs know from adapters. It adapts to its path,
// but a request fails only after the time that all repetitions by QPAttr.Timeout and RetryCount
// would take; with either at zero, it does not adapt. It stays in its state when PeerGone is called
// while no request is outstanding.
func (q *QP) ActAsAdapter() { q.asAdapter, q.mayAdapt = true, q.reliable }

// responseEnds holds the end of each read and atomic request packet under way: the sequence number
// after its last response. A request packet that asks again must not ask for more than an
// earlier one did: the peer may no longer know that it has executed both (IBTA 9.7.5.1.4).
type responseEnds struct{ ends Ring[uint32] }

// add notes a request packet, which may be a part of one that is known.
func (a *responseEnds) add(end uint32) {
	if known, ok := a.end(wire.PSNAdd(end, -1)); ok && known == end || a.ends.Full() {
		return
	}
	*a.ends.Push() = end
	for i := a.ends.tail - 1; i != a.ends.head && wire.PSNDiff(*a.ends.at(i - 1), end) > 0; i-- {
		*a.ends.at(i), *a.ends.at(i - 1) = *a.ends.at(i - 1), end
	}
}

// drop forgets the request packets whose responses end at or before una, and returns their
// number.
func (a *responseEnds) drop(una uint32) (n int) {
	for a.ends.Len() > 0 && wire.PSNDiff(*a.ends.First(), una) <= 0 {
		a.ends.Pop()
		n++
	}
	return n
}

// end returns the end of the request packet that asks for psn.
func (a *responseEnds) end(psn uint32) (end uint32, ok bool) {
	if a.ends.Len() == 0 || wire.PSNDiff(*a.ends.at(a.ends.tail - 1), psn) <= 0 {
		return 0, false // it has not been asked for yet
	}
	for i := a.ends.head; i != a.ends.tail; i++ {
		if end = *a.ends.at(i); wire.PSNDiff(end, psn) > 0 {
			return end, true
		}
	}
	return 0, false
}

// start returns the start of the request packet that asks for psn, if another request packet
// precedes it.
func (a *responseEnds) start(psn uint32) (start uint32, ok bool) {
	for i := a.ends.head; i != a.ends.tail; i++ {
		if end := *a.ends.at(i); wire.PSNDiff(end, psn) <= 0 {
			start, ok = end, true
		}
	}
	return start, ok
}
