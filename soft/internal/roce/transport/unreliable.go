package transport

import (
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/dma"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// An unreliable connection acknowledges nothing (IBTA 9.8.2). Its requester completes a
// request when its last packet has left. Its responder silently drops a message in which
// anything is wrong, and continues with the next message that begins. That message gets the
// receive that the broken one had taken, also if it came from a shared queue. A packet that
// the network duplicates may deliver its message again.

// sendUnreliable sends requests of an unreliable connection, and datagrams, as far as their
// pace and the budget allow. It reports whether the budget alone stopped it.
func (q *QP) sendUnreliable(out Output, now time.Duration, budget int) bool {
	if now < q.paceUntil {
		return false
	}
	q.paceUntil = 0
	q.refill(now)
	for q.sending() && q.sq.head != q.sq.tail {
		w := q.sq.at(q.sq.head)
		if q.state == verbs.QPSendQueueDrained && q.sendPSN == w.first {
			return false
		}
		if w.fault == verbs.StatusSuccess {
			if budget <= 0 {
				return true
			}
			if q.credit <= 0 {
				q.waitForCredit(now)
				return false
			}
			if q.paceUntil = q.rate.Wait(now); q.paceUntil != 0 {
				return false
			}
			budget--
			if w.local() {
				q.execute(w)
			} else {
				q.sendUnreliablePacket(out, w)
			}
		}
		switch {
		case w.fault != verbs.StatusSuccess:
			q.failSendQueue(w.fault)
		case wire.PSNDiff(q.sendPSN, w.last) > 0:
			q.complete()
		}
	}
	return false
}

// sendUnreliablePacket sends the packet at sendPSN and moves past it, or notes a fault in the
// request.
func (q *QP) sendUnreliablePacket(out Output, w *sendWQE) {
	p := &q.packet
	p.Begin(wire.DefaultPKey, q.attr.DestQPN, q.sendPSN)
	pieces, n, ok := q.fillData(p, w, uint32(wire.PSNDiff(q.sendPSN, w.first)), q.mtu)
	if !ok {
		w.fault = verbs.StatusLocalProtectionError
		return
	}
	if q.kind == verbs.UD {
		q.addressDatagram(p, w)
		out = w.wr.AH.(Output) // CheckAH has accepted it
	}
	if !out.Send(p, pieces, int(n)) {
		w.fault = verbs.StatusLocalProtectionError
		return
	}
	q.sendPSN = wire.PSNAdd(q.sendPSN, 1)
	q.credit -= int(n) + packetCost
	if q.controlled {
		q.rate.Sent(int(n), q.refilled)
	}
}

// failSendQueue completes the oldest request with an error and stops only the send queue (IBTA
// 10.3.1.5). The queue pair still receives.
func (q *QP) failSendQueue(status verbs.Status) {
	q.failSend(status)
	q.state = verbs.QPSendQueueError
	q.flushSends()
}

// receiving reports whether the queue pair accepts packets in its state.
func (q *QP) receiving() bool {
	switch q.state {
	case verbs.QPReadyToReceive, verbs.QPReadyToSend, verbs.QPSendQueueDrained, verbs.QPSendQueueError:
		return true
	}
	return false
}

// receiveUnreliable takes a packet of an unreliable connection (IBTA 9.8.2.2).
func (q *QP) receiveUnreliable(p *wire.Packet) {
	if !q.receiving() {
		q.counters.WrongState++
		return
	}
	first, last := position(p.Opcode)
	inOrder := p.PSN == q.expected
	if !inOrder {
		q.counters.OutOfSequence++
	}
	if first {
		q.dropMessage() // the end of the message before this one was lost
	} else if q.message == noMessage || !inOrder {
		q.dropMessage()
		return
	}
	q.expected = wire.PSNAdd(p.PSN, 1)
	kind, take := sendMessage, q.takeUnreliableSend
	switch p.Opcode {
	case wire.UCWriteFirst, wire.UCWriteMiddle, wire.UCWriteLast, wire.UCWriteLastImm, wire.UCWriteOnly, wire.UCWriteOnlyImm:
		kind, take = writeMessage, q.takeUnreliableWrite
	}
	whole := q.wellFormed(p, kind)
	q.message = kind
	if !whole || !take(p, first, last) {
		q.dropMessage()
		return
	}
	q.noteReceived(q.payloadLen, last)
	if last {
		q.message, q.writing.region = noMessage, nil
	}
}

// dropMessage drops the message that is being received, if there is one. Its later packets are
// dropped too, since they belong to no message.
func (q *QP) dropMessage() {
	if q.message != noMessage {
		q.counters.BrokenMessages++
	}
	q.message, q.writing.region = noMessage, nil
}

// takeUnreliableSend places a packet of a send. It reports false if the message must be
// dropped.
func (q *QP) takeUnreliableSend(p *wire.Packet, first, last bool) bool {
	if first {
		if !q.ensureReceive() {
			return false
		}
		q.received = 0
	}
	switch status := q.fillReceive(q.payload...); status {
	case verbs.StatusSuccess:
	case verbs.StatusLocalLengthError:
		return false
	default:
		q.failReceiver(status)
		return false
	}
	if last {
		q.finishReceive(p, verbs.WCRecv, q.received)
	}
	return true
}

// takeUnreliableWrite places a packet of a write. It reports false if the message must be
// dropped.
func (q *QP) takeUnreliableWrite(p *wire.Packet, first, last bool) bool {
	if first {
		if q.attr.Access&verbs.AccessRemoteWrite == 0 || p.RETH.Length > MaxMessage || !q.admitsRange(&p.RETH) {
			return false
		}
		if !q.writing.begin(q, p.RETH) {
			q.counters.RemoteAccessErrors++
			q.chargeKey(p.RETH.RKey)
			return false
		}
		q.granted.AddRange(&p.RETH)
	}
	n := q.payloadLen
	if n > q.writing.left || last != (n == q.writing.left) {
		return false
	}
	if p.Opcode.HasImm() && !q.ensureReceive() {
		return false
	}
	switch valid, fault := q.writing.copy(n, q.payload); {
	case !valid:
		q.counters.RemoteAccessErrors++
		return false
	case fault != dma.NoFault:
		return false
	}
	q.writing.placed(n)
	if p.Opcode.HasImm() {
		q.finishReceive(p, verbs.WCRecvWriteImm, q.writing.size)
	}
	return true
}

// failReceiver completes the receive in use with a local error and puts the queue pair in the
// error state (IBTA 9.9.3, class A). That completion tells the program. An event besides would report
// a fault to programs that deregister their buffers before they destroy the queue pair.
func (q *QP) failReceiver(status verbs.Status) {
	q.failReceive(status)
	q.fail()
}

// pacer bounds the rate of services that nothing acknowledges. An adapter receives as fast as
// the wire delivers packets. A software device has a socket buffer, which a long message would
// overrun.
type pacer struct {
	credit    int           // bytes that may leave now
	refilled  time.Duration // when credit was last added to
	paceUntil time.Duration // zero: not waiting
}

const (
	paceRate = 512 << 20 // bytes a second
	// packetCost is the least that a socket buffer is charged for a packet besides its
	// payload, in bytes.
	packetCost = 256
)

// refill adds the credit earned since the last time.
func (q *QP) refill(now time.Duration) {
	elapsed := min(now-q.refilled, time.Second)
	q.refilled = now
	q.credit = min(q.credit+int(elapsed*paceRate/time.Second), q.window)
}

// waitForCredit stops sending until a quarter of the window may leave.
func (q *QP) waitForCredit(now time.Duration) {
	q.paceUntil = now + time.Duration(q.window/4-q.credit)*time.Second/paceRate
}

// checkDatagram returns an error if a request cannot be sent as a datagram.
func (q *QP) checkDatagram(wr *verbs.SendWR, total uint64) error {
	switch {
	case total > uint64(q.mtu):
		// By IBTA 10.8 (C10-93.1.1), the message would be dropped silently.
		return fmt.Errorf("message of %d bytes exceeds the path MTU of the port, %d, which limits datagrams: %w", total, q.mtu, verbs.ErrInvalid)
	case wr.RemoteQPN == 0 || wr.RemoteQPN > 0xffffff:
		return fmt.Errorf("RemoteQPN is %#x, must be from 1 to 0xffffff: %w", wr.RemoteQPN, verbs.ErrInvalid)
	}
	return q.checkAH(wr.AH, wr.RemoteQPN)
}

// DatagramQKey returns the Q_Key of a packet: that of the send request, or the queue pair's own if
// the request's highest bit selects it (IBTA 10.2.5).
func DatagramQKey(requested, own uint32) uint32 {
	if requested&(1<<31) != 0 {
		return own
	}
	return requested
}

// addressDatagram fills in the destination and the DETH of a datagram's packet.
func (q *QP) addressDatagram(p *wire.Packet, w *sendWQE) {
	p.DestQP = w.wr.RemoteQPN
	p.DETH = wire.DETH{QKey: DatagramQKey(w.wr.RemoteQKey, q.attr.QKey), SrcQP: q.num}
}

// ReceiveDatagram handles a packet from any sender (IBTA 9.8.3). The caller has verified its
// checksum and that it names this queue pair. The program sees header in front of the data.
// udpPort is the UDP port for replies to the sender, or zero if that is RoCEv2's.
//
// A datagram is dropped if there is no receive, or the receive is too small for header and
// data. The receive stays for the next datagram (IBTA 9.9.3, class D). The kernel's soft-RoCE
// driver drops the datagram in the first case too, but in the second it fails the receive and
// the queue pair (seen with Linux 6.1): anybody with the Q_Key can end the queue pair.
func (q *QP) ReceiveDatagram(p *wire.Packet, header *[verbs.GRHLen]byte, udpPort uint16) {
	if p.Opcode == wire.CNP {
		q.counters.NotificationsIgnored++
		return
	}
	if q.kind != verbs.UD || p.Opcode.Service() != wire.ServiceUD {
		q.counters.WrongService++
		return
	}
	if !q.receiving() {
		q.counters.WrongState++
		return
	}
	if p.DETH.QKey != q.attr.QKey {
		q.counters.QKeyViolations++
		return
	}
	n := uint32(len(p.Payload))
	if n > q.mtu || !q.ensureReceive() {
		q.counters.DatagramsDropped++
		return
	}
	if !q.current.fault && verbs.GRHLen+n > q.current.length {
		q.counters.DatagramsDropped++
		return
	}
	q.received, q.replyPort = 0, udpPort
	q.ipv4 = header[0]>>4 != 6 // IPv4 headers are in the last 20 bytes, after zeros
	if status := q.fillReceive(header[:], p.Payload); status != verbs.StatusSuccess {
		q.failReceiver(status)
		return
	}
	q.noteReceived(n, true)
	q.finishReceive(p, verbs.WCRecv, q.received)
}
