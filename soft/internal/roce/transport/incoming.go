package transport

import (
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// incoming is the payload of the packet that is being received.
type incoming struct {
	payload    [][]byte
	payloadLen uint32
	payloadMax uint32      // the most bytes that it may have
	single     [1][]byte   // the payload, if it is in one piece
	intact     func() bool // see ReceivePieces; nil: the payload cannot change
	unreadable bool        // the payload cannot be read
}

// Receive handles a packet from the peer of a connection. The caller has verified its
// checksum, its source address and that it names this queue pair.
func (q *QP) Receive(p *wire.Packet, now time.Duration) {
	q.heardAt = now
	if p.Opcode == wire.CNP {
		q.receiveNotification(now)
		return
	}
	if p.Opcode.Service() != q.service {
		q.counters.WrongService++ // dropped (IBTA 9.6)
		return
	}
	if p.BECN {
		q.receiveNotification(now)
	}
	q.single[0] = p.Payload
	q.payload, q.payloadLen, q.payloadMax = q.single[:], uint32(len(p.Payload)), q.mtu
	if q.reliable {
		q.receiveReliable(p, now)
	} else if q.kind == verbs.UC {
		q.receiveUnreliable(p)
	}
}

// ReceivePieces is Receive for a packet of a reliable connection whose payload is in pieces,
// as an Output gets them. The payload may be larger than the path MTU: see SetLargestPacket. If
// mtu, the path MTU of the peer, differs from that of the queue pair, the payload may not: the two
// would count its sequence numbers differently. What is refused is then the same as on a network.
// The Output's Send must not call ReceivePieces, since it runs inside a Transmit of the same
// queue pair.
//
// If the pieces can change, intact reports, after they have been copied, whether they were
// still what was sent. If they were not, or cannot be read, the packet counts as lost and the
// copied bytes as not received. ReceivePieces reports false if the pieces cannot be read.
func (q *QP) ReceivePieces(p *wire.Packet, mtu verbs.MTU, pieces [][]byte, intact func() bool, now time.Duration) (readable bool) {
	if !q.reliable || p.Opcode.Service() != q.service {
		q.counters.WrongService++
		return true
	}
	q.heardAt = now
	q.payload, q.payloadLen, q.payloadMax, q.intact = pieces, size(pieces), MaxLargePacket, intact
	if uint32(mtu) != q.mtu {
		q.payloadMax = min(uint32(mtu), q.mtu)
	}
	q.receiveReliable(p, now)
	readable = !q.unreadable
	q.intact, q.unreadable = nil, false
	return readable
}

func (q *QP) receiveReliable(p *wire.Packet, now time.Duration) {
	p.Opcode = p.Opcode.Operation() // XRC has the operations of RC
	switch p.Opcode {
	case wire.RCAcknowledge:
		q.receiveAck(p, now)
	case wire.RCReadResponseFirst, wire.RCReadResponseMiddle, wire.RCReadResponseLast, wire.RCReadResponseOnly:
		q.receiveRead(p, now)
	case wire.RCAtomicAcknowledge:
		q.receiveAtomic(p, now)
	default:
		q.receiveRequest(p)
	}
}

// payloadChanged reports whether the payload had changed by the time it was copied, or could not be
// read.
func (q *QP) payloadChanged() bool {
	changed := q.intact != nil && !q.intact()
	return changed || q.unreadable
}

// Plausible reports whether the queue pair waits for a packet: it is the next request, or a
// response to something under way. A sender that cannot see the connection's packets needs
// 2^24 guesses for such a sequence number, divided by the number of packets under way.
//
// Repetitions of the latest requests, up to the given number of packets behind, are plausible
// too: a peer whose packets have come by another path repeats what was not acknowledged there.
func (q *QP) Plausible(p *wire.Packet, behind int32) bool {
	if p.Opcode.Service() != q.service {
		return false
	}
	switch p.Opcode.Operation() {
	case wire.RCAcknowledge, wire.RCReadResponseFirst, wire.RCReadResponseMiddle, wire.RCReadResponseLast,
		wire.RCReadResponseOnly, wire.RCAtomicAcknowledge:
		return q.expectsResponse(p.PSN)
	}
	d := wire.PSNDiff(p.PSN, q.expected)
	return q.receiving() && d <= 0 && d >= -behind
}
