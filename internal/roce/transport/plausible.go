package transport

import (
	"github.com/verbena-rdma/verbena/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// Plausible reports whether a packet is one that the queue pair waits for: the next request, or
// a response to something that is under way. Who cannot see the connection's packets guesses
// the sequence number of such a one at best once in 2^24 times, divided by the packets under
// way. An unreliable connection, whose peer may be at any number by now, waits for any that is
// not of the past.
func (q *QP) Plausible(p *wire.Packet) bool {
	if p.Opcode.Service() != q.service {
		return false
	}
	switch p.Opcode {
	case wire.RCAcknowledge, wire.RCReadResponseFirst, wire.RCReadResponseMiddle, wire.RCReadResponseLast,
		wire.RCReadResponseOnly, wire.RCAtomicAcknowledge:
		return q.awaited(p.PSN)
	}
	if q.kind == verbs.RC {
		return q.receiving() && p.PSN == q.expected
	}
	return q.receiving() && wire.PSNDiff(p.PSN, q.expected) >= 0
}
