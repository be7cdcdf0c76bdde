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
	payloadMax uint32      // the most that it may be
	whole      [1][]byte   // the payload, where it is in one piece
	intact     func() bool // see ReceivePieces; nil: the payload cannot change
	unreadable bool        // the payload cannot be read
}

// Receive takes a packet from the peer of a connection. That its checksum holds,
// that it came from the peer's address and that it names this queue pair has been
// checked.
func (q *QP) Receive(p *wire.Packet, now time.Duration) {
	if p.Opcode == wire.CNP {
		q.notified(now)
		return
	}
	if p.Opcode.Service() != q.service {
		q.counters.WrongService++ // dropped (IBTA 9.6)
		return
	}
	if p.BECN {
		q.notified(now)
	}
	q.whole[0] = p.Payload
	q.payload, q.payloadLen, q.payloadMax = q.whole[:], uint32(len(p.Payload)), q.mtu
	switch q.kind {
	case verbs.RC:
		q.receiveReliable(p, now)
	case verbs.UC:
		q.receiveUnreliable(p)
	}
}

// ReceivePieces is Receive for a packet of a reliable connection whose payload is that of
// pieces, as an Output gets it, and which may be larger than the path MTU: see
// SetLargestPacket. It must not be called by that Output's Send, in the midst of a
// Transmit of the same queue pair. Where the pieces can change, intact says whether they were
// what was sent when they had been copied; if not, the packet counts as lost, and what has been
// copied as not there. So it is if the pieces cannot be read, and ReceivePieces reports false.
func (q *QP) ReceivePieces(p *wire.Packet, pieces [][]byte, intact func() bool, now time.Duration) (readable bool) {
	if q.kind != verbs.RC || p.Opcode.Service() != q.service {
		q.counters.WrongService++
		return true
	}
	q.payload, q.payloadLen, q.payloadMax, q.intact = pieces, size(pieces), MaxLargePacket, intact
	q.receiveReliable(p, now)
	readable = !q.unreadable
	q.intact, q.unreadable = nil, false
	return readable
}

func (q *QP) receiveReliable(p *wire.Packet, now time.Duration) {
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

// changed reports whether the payload was no longer what was sent when it was copied, or could not
// be read.
func (q *QP) changed() bool {
	changed := q.intact != nil && !q.intact()
	return changed || q.unreadable
}

// Plausible reports whether a packet is one that the queue pair waits for: the next request, or
// a response to something that is under way. Who cannot see the connection's packets guesses
// the sequence number of such a one at best once in 2^24 times, divided by the packets under
// way. Repetitions of the latest requests, as many packets as behind, are taken too: a peer
// whose packets have come by another way sends what was not acknowledged there again.
func (q *QP) Plausible(p *wire.Packet, behind int32) bool {
	if p.Opcode.Service() != q.service {
		return false
	}
	switch p.Opcode {
	case wire.RCAcknowledge, wire.RCReadResponseFirst, wire.RCReadResponseMiddle, wire.RCReadResponseLast,
		wire.RCReadResponseOnly, wire.RCAtomicAcknowledge:
		return q.awaited(p.PSN)
	}
	d := wire.PSNDiff(p.PSN, q.expected)
	return q.receiving() && d <= 0 && d >= -behind
}
