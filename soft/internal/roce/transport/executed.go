package transport

import "github.com/verbena-rdma/verbena/soft/internal/roce/wire"

// execution is a read or atomic that a responder has executed.
type execution struct {
	opcode   wire.Opcode
	psn      uint32 // of its first response
	packets  int    // of responses
	rkey     uint32
	length   uint32 // of a read, in bytes
	addr     uint64
	original uint64 // result of an atomic, which must not be executed twice (IBTA 9.4.5.3)
}

// executions are the latest reads and atomics that a responder has executed, as many as
// its peer may have outstanding. A request with an old sequence number is answered only if it
// repeats one of them, whole or from a later packet on (IBTA 9.7.5.1.4). Any other would be
// a way to try keys without an end, since old requests do not end a connection.
type executions struct{ Ring[execution] }

// add remembers one, in place of the oldest if there are as many as may be.
func (x *executions) add(e execution) {
	if x.Full() {
		x.Pop()
	}
	*x.Push() = e
}

// repeatedBy returns the one that a request repeats, or nil.
func (x *executions) repeatedBy(p *wire.Packet, mtu uint32) *execution {
	for i := x.tail; i != x.head; i-- {
		e := x.at(i - 1)
		behind := wire.PSNDiff(p.PSN, e.psn)
		if p.Opcode != e.opcode || behind < 0 || int(behind) >= e.packets {
			continue
		}
		if p.Opcode != wire.RCReadRequest {
			if p.Atomic.RKey != e.rkey || p.Atomic.VA != e.addr {
				return nil
			}
			return e
		}
		skipped := uint32(behind) * mtu // less than length, where that is not zero
		if p.RETH.RKey != e.rkey || p.RETH.VA != e.addr+uint64(skipped) || p.RETH.Length > e.length-skipped {
			return nil
		}
		return e
	}
	return nil
}
