package transport

import (
	"github.com/verbena-rdma/verbena/soft/internal/roce/dma"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// responder is the receiving half of a queue pair.
type responder struct {
	expected uint32 // PSN
	msn      uint32 // messages completed, 24 bits

	// nakSent suppresses further NAKs until the expected packet comes, or until the peer is
	// seen to start another round.
	nakSent        bool
	nakPending     bool   // a request was refused, and the answers to earlier ones have not left
	faultTold      bool   // the completion of a receive has told the program why the connection ends
	nextSeen       bool   // the packet after the expected one has been seen
	lastOutOfOrder uint32 // the last packet that came instead of the expected one

	message   message // the kind of the message of several packets that is being received
	current   Receive // the receive that a send is filling
	inReceive bool    // current was taken and is not completed

	writing incomingWrite
	// replyPort is the UDP port of a datagram's sender; zero: RoCEv2's port.
	replyPort uint16
	ipv4      bool   // the datagram came by IPv4
	received  uint32 // bytes of a send that are in place

	responses responseQueue
	executed  executions
	// unconfirmed is how many bytes of read responses have left since the peer's last packet.
	unconfirmed uint64
}

// message is the kind of a message of several packets that is being received.
type message uint8

const (
	noMessage message = iota
	sendMessage
	writeMessage
)

func (q *QP) startResponder() {
	q.expected = q.attr.RQPSN
	depth := max(q.attr.MaxDestReadAtomic, 1)
	q.responses.depth = 2*depth + 4
	q.executed.depth = depth
}

// receiveRequest validates and executes a request packet (IBTA 9.7.4, 9.9.3).
func (q *QP) receiveRequest(p *wire.Packet) {
	if q.kind == verbs.XRCSend {
		q.counters.WrongService++
		return
	}
	switch q.state {
	case verbs.QPReadyToReceive, verbs.QPReadyToSend, verbs.QPSendQueueDrained:
	default:
		q.counters.WrongState++
		return
	}
	if q.nakPending {
		q.counters.WrongState++
		return
	}
	switch d := wire.PSNDiff(p.PSN, q.expected); {
	case d > 0:
		q.counters.OutOfSequence++
		// If the packet right after the gap comes again, the peer has begun another round, in
		// which the expected packet was lost too. If the last packet comes again and asks for
		// an acknowledgement, the NAK was lost.
		next := d == 1
		if !q.nakSent || next && q.nextSeen || p.AckReq && p.PSN == q.lastOutOfOrder {
			q.nakSent = true
			q.nak(wire.NakSequence)
		}
		q.nextSeen = q.nextSeen || next
		q.lastOutOfOrder = p.PSN
		return
	case d < 0:
		q.counters.DuplicateRequests++
		q.receiveDuplicate(p)
		return
	}
	q.nakSent, q.nextSeen, q.lastOutOfOrder = false, false, p.PSN
	q.unconfirmed = 0
	if q.kind == verbs.XRCRecv && !q.takesFrom(p.SRQN) {
		q.refuse(wire.NakInvalidRequest)
		return
	}
	switch p.Opcode {
	case wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLast, wire.RCSendLastImm, wire.RCSendOnly, wire.RCSendOnlyImm,
		wire.RCSendLastInvalidate, wire.RCSendOnlyInvalidate:
		q.receiveSend(p)
	case wire.RCWriteFirst, wire.RCWriteMiddle, wire.RCWriteLast, wire.RCWriteLastImm, wire.RCWriteOnly, wire.RCWriteOnlyImm:
		q.receiveWrite(p)
	case wire.RCReadRequest:
		q.receiveReadRequest(p)
	case wire.RCCompareSwap, wire.RCFetchAdd:
		q.receiveAtomicRequest(p)
	case wire.RCAtomicWrite:
		q.receiveAtomicWrite(p)
	default:
		q.refuse(wire.NakInvalidRequest)
	}
}

// position reports whether a data packet is the first and the last of its message.
func position(o wire.Opcode) (first, last bool) {
	switch o.Operation() {
	case wire.RCSendOnly, wire.RCSendOnlyImm, wire.RCSendOnlyInvalidate, wire.RCWriteOnly, wire.RCWriteOnlyImm:
		return true, true
	case wire.RCSendFirst, wire.RCWriteFirst:
		return true, false
	case wire.RCSendMiddle, wire.RCWriteMiddle:
		return false, false
	default:
		return false, true
	}
}

// wellFormed checks the order of a message's packets and their length. All but the last are
// full (IBTA 9.7.4.1.2, 9.7.4.1.6), or several times as large.
func (q *QP) wellFormed(p *wire.Packet, kind message) bool {
	first, last := position(p.Opcode)
	want := kind
	if first {
		want = noMessage
	}
	n := q.payloadLen
	switch {
	case q.message != want:
		return false
	case !last:
		return n >= q.mtu && n <= q.payloadMax && n&(q.mtu-1) == 0
	case !first:
		return n >= 1 && n <= q.payloadMax
	default:
		return n <= q.payloadMax
	}
}

func (q *QP) receiveSend(p *wire.Packet) {
	if !q.wellFormed(p, sendMessage) {
		q.refuse(wire.NakInvalidRequest)
		return
	}
	first, last := position(p.Opcode)
	if first {
		if !q.takeReceive() {
			return
		}
		q.received = 0
	}
	var window *Window // to be invalidated
	if p.Opcode.HasIETH() {
		if !q.admits(p.InvalidateRKey) {
			return
		}
		if window = q.revocable(p.InvalidateRKey); window == nil {
			q.refuseKey(p.InvalidateRKey)
			return
		}
	}
	before := q.received
	status := q.fillReceive(q.payload...)
	if q.payloadChanged() {
		q.received = before
		return
	}
	switch status {
	case verbs.StatusSuccess:
	case verbs.StatusLocalLengthError:
		q.failReceive(status)
		q.refuse(wire.NakInvalidRequest)
		return
	default:
		q.failReceive(status)
		q.faultTold = true
		q.refuse(wire.NakRemoteOperation)
		return
	}
	q.message = sendMessage
	if last {
		q.message = noMessage
		if window != nil {
			window.revoke()
		}
		q.finishReceive(p, verbs.WCRecv, q.received)
	}
	q.advanceExpected(p, last)
}

// fillReceive places the next bytes of a send.
func (q *QP) fillReceive(parts ...[]byte) verbs.Status {
	switch {
	case q.current.fault:
		return verbs.StatusLocalProtectionError
	case size(parts) > q.current.length-q.received:
		return verbs.StatusLocalLengthError
	}
	for _, part := range parts {
		switch q.current.segs.Scatter(q.received, part) {
		case dma.TargetFault:
			return verbs.StatusLocalProtectionError
		case dma.SourceFault:
			q.unreadable = true
			return verbs.StatusSuccess // the packet counts as lost
		}
		q.received += uint32(len(part))
	}
	return verbs.StatusSuccess
}

func size(parts [][]byte) uint32 {
	n := uint32(0)
	for _, part := range parts {
		n += uint32(len(part))
	}
	return n
}

func (q *QP) receiveWrite(p *wire.Packet) {
	if !q.wellFormed(p, writeMessage) {
		q.refuse(wire.NakInvalidRequest)
		return
	}
	first, last := position(p.Opcode)
	if first {
		if !q.permits(verbs.AccessRemoteWrite) {
			return
		}
		if p.RETH.Length > MaxMessage {
			q.refuse(wire.NakInvalidRequest)
			return
		}
		if !q.admitsRange(&p.RETH) {
			return
		}
		if !q.writing.begin(q, p.RETH) {
			q.refuseKey(p.RETH.RKey)
			return
		}
		q.granted.AddRange(&p.RETH)
	}
	n := q.payloadLen
	if n > q.writing.left || last != (n == q.writing.left) {
		q.refuse(wire.NakInvalidRequest)
		return
	}
	if p.Opcode.HasImm() && !q.takeReceive() {
		return
	}
	valid, fault := q.writing.copy(n, q.payload)
	q.unreadable = fault == dma.SourceFault
	switch {
	case q.payloadChanged():
		return
	case !valid:
		q.refuse(wire.NakRemoteAccess)
		return
	case fault != dma.NoFault:
		q.refuse(wire.NakRemoteOperation)
		return
	}
	q.writing.placed(n)
	q.message = writeMessage
	if last {
		q.message = noMessage
		q.writing.region = nil
		if p.Opcode.HasImm() {
			q.finishReceive(p, verbs.WCRecvWriteImm, q.writing.size)
		}
	}
	q.advanceExpected(p, last)
}

func (q *QP) receiveReadRequest(p *wire.Packet) {
	if q.message != noMessage {
		q.refuse(wire.NakInvalidRequest)
		return
	}
	if !q.permits(verbs.AccessRemoteRead) {
		return
	}
	if p.RETH.Length > MaxMessage || q.attr.MaxDestReadAtomic == 0 {
		q.refuse(wire.NakInvalidRequest)
		return
	}
	if q.responsesFull() || !q.admitsRange(&p.RETH) {
		return
	}
	from, ok := q.readable(p, q.domain)
	if !ok {
		q.refuseKey(p.RETH.RKey)
		return
	}
	q.granted.AddRange(&p.RETH)
	q.msn = (q.msn + 1) & wire.PSNMask
	q.pushRead(p, from)
	packets := q.packetsOf(p.RETH.Length)
	q.executed.add(execution{opcode: p.Opcode, psn: p.PSN, packets: packets, rkey: p.RETH.RKey, length: p.RETH.Length, addr: p.RETH.VA, domain: q.domain})
	q.expected = wire.PSNAdd(q.expected, packets)
	q.noteAnswered(p.RETH.Length)
}

// responsesFull reports whether there is no room for another response, and counts the request that
// is dropped.
func (q *QP) responsesFull() bool {
	if !q.responses.nearlyFull() {
		return false
	}
	q.counters.RequestsDropped++
	return true
}

// pushRead queues the response to a read. This end controls how fast the packets of a long
// response leave. A peer that asks for less at a time controls that itself.
func (q *QP) pushRead(p *wire.Packet, from grant) {
	q.responses.push(response{
		kind: readResponse, psn: p.PSN, msn: q.msn, from: from, left: p.RETH.Length, long: q.packetsOf(p.RETH.Length) > shortRead,
	})
}

// readable checks the range that a read request names, in that protection domain.
func (q *QP) readable(p *wire.Packet, domain uint32) (grant, bool) {
	if p.RETH.Length == 0 {
		return grant{}, true
	}
	return q.memory.grantIn(domain, q, p.RETH.RKey, p.RETH.VA, p.RETH.Length, verbs.AccessRemoteRead)
}

func (q *QP) receiveAtomicRequest(p *wire.Packet) {
	if q.message != noMessage {
		q.refuse(wire.NakInvalidRequest)
		return
	}
	if !q.permits(verbs.AccessRemoteAtomic) {
		return
	}
	g, word, ok := q.acquireWord(p.Atomic.RKey, p.Atomic.VA, verbs.AccessRemoteAtomic)
	if !ok {
		return
	}
	var original uint64
	var fault dma.Fault
	if p.Opcode == wire.RCFetchAdd {
		original, fault = word.FetchAdd(p.Atomic.SwapAdd)
	} else {
		original, fault = word.CompareSwap(p.Atomic.Compare, p.Atomic.SwapAdd)
	}
	g.release()
	if fault != dma.NoFault {
		q.refuse(g.faultNak())
		return
	}
	q.wordChanged(&g, execution{opcode: p.Opcode, psn: p.PSN, packets: 1, rkey: p.Atomic.RKey, addr: p.Atomic.VA, original: original})
	q.noteAnswered(8)
	q.responses.push(response{kind: atomicResponse, psn: p.PSN, msn: q.msn, value: original})
}

// receiveAtomicWrite stores the payload of an atomic write. The payload is complete before the
// store, so that memory never holds a part of it.
func (q *QP) receiveAtomicWrite(p *wire.Packet) {
	if q.message != noMessage {
		q.refuse(wire.NakInvalidRequest)
		return
	}
	if !q.permits(verbs.AccessRemoteWrite) {
		return
	}
	if q.payloadLen != 8 || p.RETH.Length != 8 {
		q.refuse(wire.NakInvalidRequest)
		return
	}
	g, word, ok := q.acquireWord(p.RETH.RKey, p.RETH.VA, verbs.AccessRemoteWrite)
	if !ok {
		return
	}
	fault := copyWord(&q.scratch, q.payload)
	q.unreadable = fault != dma.NoFault
	lost := q.payloadChanged()
	if !lost {
		fault = word.Write(q.scratch[:])
	}
	g.release()
	switch {
	case lost:
		return
	case fault != dma.NoFault:
		q.refuse(g.faultNak())
		return
	}
	q.wordChanged(&g, execution{opcode: p.Opcode, psn: p.PSN, packets: 1, rkey: p.RETH.RKey, length: 8, addr: p.RETH.VA})
	q.noteReceived(8, true)
	q.responses.push(response{kind: atomicWriteResponse, psn: p.PSN, msn: q.msn})
}

// acquireWord acquires the word of memory that an atomic or an atomic write names. It reports
// false if the request is refused or dropped.
func (q *QP) acquireWord(key uint32, va uint64, access verbs.Access) (g grant, word dma.Far, ok bool) {
	if va%8 != 0 || q.attr.MaxDestReadAtomic == 0 {
		q.refuse(wire.NakInvalidRequest)
		return g, word, false
	}
	if q.responsesFull() || !q.admits(key) {
		return g, word, false
	}
	if g, ok = q.memory.grant(q, key, va, 8, access); !ok {
		q.refuseKey(key)
		return g, word, false
	}
	// A zero-based window can begin anywhere, and so can a region under another address than
	// its own.
	if word, _ = g.region.Place(g.addr, 8); !word.IsWord() {
		q.refuse(wire.NakInvalidRequest)
		return g, word, false
	}
	if !g.acquire() {
		q.refuse(wire.NakRemoteAccess)
		return g, word, false
	}
	q.granted.Add(key)
	return g, word, true
}

// wordChanged moves past an atomic or an atomic write that has changed the word at g.
func (q *QP) wordChanged(g *grant, e execution) {
	if len(g.region.watches) > 0 {
		g.region.notify(g.addr, 8)
	}
	q.msn = (q.msn + 1) & wire.PSNMask
	q.executed.add(e)
	q.expected = wire.PSNAdd(q.expected, 1)
}

// permits checks whether the queue pair's attributes allow the access, and refuses the request
// if not.
func (q *QP) permits(access verbs.Access) bool {
	if q.attr.Access&access == 0 {
		q.refuse(wire.NakInvalidRequest)
		return false
	}
	return true
}

// advanceExpected moves past an executed send or write packet.
func (q *QP) advanceExpected(p *wire.Packet, last bool) {
	q.expected = wire.PSNAdd(q.expected, q.packetsOf(q.payloadLen))
	q.noteReceived(q.payloadLen, last)
	if last {
		q.msn = (q.msn + 1) & wire.PSNMask
	}
	if p.AckReq {
		q.ack()
	}
}

// takeReceive makes sure that a receive is in use, or sends a receiver-not-ready NAK.
func (q *QP) takeReceive() bool {
	if !q.ensureReceive() {
		q.counters.RNRNaksSent++
		q.rnrSent++
		q.nakSent = true
		q.responses.push(response{kind: ackResponse, psn: q.expected, msn: q.msn, syndrome: wire.RNRNak(q.attr.MinRNRTimer)})
		return false
	}
	return true
}

// ensureReceive makes sure that a receive is in use: one that was taken before and not
// completed, or the next. It reports false if there is none.
func (q *QP) ensureReceive() bool {
	if !q.inReceive {
		q.inReceive = q.rq.Take(&q.current)
	}
	return q.inReceive
}

func (q *QP) finishReceive(p *wire.Packet, opcode verbs.WCOpcode, n uint32) {
	q.inReceive = false
	q.counters.Receives++
	wc := verbs.WC{ID: q.current.id, Opcode: opcode, Bytes: n, QPN: q.num}
	if q.kind == verbs.UD {
		wc.SrcQPN, wc.HasGRH, wc.IPv4, wc.SrcUDPPort = p.DETH.SrcQP, true, q.ipv4, q.replyPort
	}
	if p.Opcode.HasImm() {
		wc.HasImm, wc.Imm = true, p.Imm // without the header, p.Imm is an earlier packet's
	}
	if p.Opcode.HasIETH() {
		wc.InvalidatedRKey = p.InvalidateRKey
	}
	q.recvCQ.Complete(wc, q.receives.Add(), p.Solicited)
}

func (q *QP) failReceive(status verbs.Status) {
	q.inReceive = false
	q.recvCQ.Complete(verbs.WC{ID: q.current.id, Status: status, Opcode: verbs.WCRecv, QPN: q.num}, q.receives.Add(), true)
}

// ack acknowledges everything executed so far.
func (q *QP) ack() {
	psn := wire.PSNAdd(q.expected, -1)
	if q.responses.mergeAck(psn, q.msn) {
		q.counters.AcksDeferred++
		return
	}
	q.responses.push(response{kind: ackResponse, psn: psn, msn: q.msn, syndrome: wire.Ack(wire.AckUnlimited)})
}

func (q *QP) nak(code wire.NakCode) {
	q.responses.push(response{kind: ackResponse, psn: q.expected, msn: q.msn, syndrome: wire.Nak(code)})
}

// refuse responds to the expected packet with a NAK that ends the connection. Earlier reads
// are answered first (IBTA 9.9.3.1, class C), since a queue pair in error drops what it receives
// and sends nothing more (IBTA 10.3.1). So a NAK that is lost does not come again: the peer ends
// with retry exceeded, and only the responder's event names the cause.
func (q *QP) refuse(code wire.NakCode) {
	q.countNak(code)
	q.nakPending = q.responses.reads() && !q.responses.Full() // otherwise the NAK has no place
	q.nak(code)
	if !q.nakPending {
		q.failAfterNak(code)
	}
}

func (q *QP) countNak(code wire.NakCode) {
	switch code {
	case wire.NakRemoteAccess:
		q.counters.RemoteAccessErrors++
	case wire.NakInvalidRequest:
		q.counters.RemoteInvalidErrors++
	}
}

// failAfterNak ends the connection after a refusal. There is no event of a local fault that a
// completion has reported (IBTA 9.9.3, class A).
func (q *QP) failAfterNak(code wire.NakCode) {
	event := verbs.EventQPRequestError
	switch code {
	case wire.NakRemoteAccess:
		event = verbs.EventQPAccessError
	case wire.NakRemoteOperation:
		event = verbs.EventQPFatal
	}
	q.fail()
	if !q.faultTold {
		q.event(event)
	}
}

// receiveDuplicate responds again to a request that was executed before, because the response may
// have been lost (IBTA 9.7.5.1.4). A request that was not executed before is dropped.
func (q *QP) receiveDuplicate(p *wire.Packet) {
	switch p.Opcode {
	case wire.RCReadRequest, wire.RCCompareSwap, wire.RCFetchAdd, wire.RCAtomicWrite:
	default:
		if !p.Opcode.Known() {
			q.counters.DuplicatesRefused++
			return
		}
		if _, last := position(p.Opcode); p.AckReq || last {
			q.ack()
		}
		return
	}
	e := q.executed.repeatedBy(p, q.mtu)
	if e == nil || p.Opcode == wire.RCReadRequest && q.attr.Access&verbs.AccessRemoteRead == 0 {
		q.counters.DuplicatesRefused++
		return
	}
	if q.responsesFull() {
		return
	}
	q.unconfirmed = 0
	switch p.Opcode {
	case wire.RCCompareSwap, wire.RCFetchAdd:
		q.responses.push(response{kind: atomicResponse, psn: p.PSN, msn: q.msn, value: e.original})
		return
	case wire.RCAtomicWrite:
		q.responses.push(response{kind: atomicWriteResponse, psn: p.PSN, msn: q.msn})
		return
	}
	from, ok := q.readable(p, e.domain)
	if !ok {
		// The memory was taken away since. A peer that has the response ignores this NAK.
		q.responses.push(response{kind: ackResponse, psn: p.PSN, msn: q.msn, syndrome: wire.Nak(wire.NakRemoteAccess)})
		return
	}
	q.pushRead(p, from)
}
