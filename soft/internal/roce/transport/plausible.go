package transport

import (
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

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
