package transport

import "github.com/verbena-rdma/verbena/soft/internal/roce/wire"

// fuzzExecution is a read, atomic or atomic write that a queue pair has executed.
type fuzzExecution struct {
	op     wire.Opcode
	psn    uint32
	key    uint32
	va     uint64
	length uint32
}

// checkRepeated fails if a queue pair answers a request with an old number that repeats none
// which it executed. It comes behind the delivery; before it, the queue pair expected that
// number and had so many responses to send.
func (q *fuzzQP) checkRepeated(p *wire.Packet, expected uint32, responses int) {
	key, va, length := p.RETH.RKey, p.RETH.VA, p.RETH.Length
	switch p.Opcode {
	case wire.RCReadRequest, wire.RCAtomicWrite:
	case wire.RCCompareSwap, wire.RCFetchAdd:
		key, va, length = p.Atomic.RKey, p.Atomic.VA, 8
	default:
		return
	}
	if p.PSN == expected {
		if q.qp.expected != expected {
			q.executed = append(q.executed, fuzzExecution{p.Opcode, p.PSN, key, va, length})
		}
		return
	}
	if wire.PSNDiff(p.PSN, expected) > 0 || q.qp.responses.Len() <= responses {
		return
	}
	for _, e := range q.executed {
		behind := uint64(wire.PSNDiff(p.PSN, e.psn)) * uint64(q.qp.mtu) // huge if it is before it
		if p.Opcode == e.op && key == e.key && behind <= uint64(e.length) && va == e.va+behind && behind+uint64(length) <= uint64(e.length) {
			return
		}
	}
	q.w.fail("%v with an old number, key %#x, address %#x, length %d is answered", p.Opcode, key, va, length)
}
