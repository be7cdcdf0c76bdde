package transport

import (
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/dma"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

type responseKind uint8

const (
	ackResponse responseKind = iota // positive or negative
	readResponse
	atomicResponse
	atomicWriteResponse // a read's, without data
)

// response is a response that waits to be sent. Responses leave in the order of the requests.
type response struct {
	kind     responseKind
	syndrome wire.Syndrome
	psn      uint32 // of a read: of the next packet
	msn      uint32
	from     grant // of a read
	left     uint32
	begun    bool // the first packet of a read has left
	long     bool // a read of more packets than shortRead
	value    uint64
}

// responseQueue is a bounded ring. It has room for all requests that a peer may have
// outstanding, and as many repetitions. A request that finds it nearly full is dropped as if
// it had been lost, and the peer repeats it.
type responseQueue struct{ Ring[response] }

// nearlyFull reports whether only the entries for an acknowledgement and a NAK are left.
func (r *responseQueue) nearlyFull() bool { return r.Len() >= r.Depth()-2 }

func (r *responseQueue) first() *response { return r.at(r.head) }

func (r *responseQueue) push(x response) {
	if r.Len() == 0 {
		r.empty() // start at the first place, as in the send queue
	}
	if place := r.Push(); place != nil {
		*place = x
	}
}

func (r *responseQueue) pop() { r.Pop().from = grant{} }

// mergeAck extends an acknowledgement that waits at the end of the queue to one more request.
// It reports false if there is none.
func (r *responseQueue) mergeAck(psn, msn uint32) bool {
	if r.Len() == 0 {
		return false
	}
	x := r.at(r.tail - 1)
	if x.kind != ackResponse || x.syndrome.Kind() != wire.KindAck {
		return false
	}
	x.psn, x.msn = psn, msn
	return true
}

// reads reports whether a read waits to be answered.
func (r *responseQueue) reads() bool {
	for i := r.head; i != r.tail; i++ {
		if r.at(i).kind == readResponse {
			return true
		}
	}
	return false
}

// dropReads removes the reads from the queue, because the memory belongs to the program again.
func (r *responseQueue) dropReads() {
	for range r.Len() {
		x := *r.first()
		if r.pop(); x.kind != readResponse {
			r.push(x)
		}
	}
}

// sendResponses sends waiting responses, as far as their rate allows, and returns the rest of
// the budget.
func (q *QP) sendResponses(out Output, now time.Duration, budget int) int {
	q.responsesWaitUntil = 0
	for budget > 0 && q.responses.Len() > 0 {
		r := q.responses.first()
		if r.long && q.rate.Bounded() {
			if q.responsesWaitUntil = q.rate.Wait(now); q.responsesWaitUntil != 0 {
				return budget
			}
		}
		p := &q.packet
		p.Begin(wire.DefaultPKey, q.attr.DestQPN, r.psn)
		p.AETH = wire.AETH{Syndrome: r.syndrome, MSN: r.msn}
		budget--
		switch r.kind {
		case ackResponse:
			p.Opcode = wire.RCAcknowledge
			q.respond(out, p, nil, 0)
			q.responses.pop()
			if q.nakPending && r.psn == q.expected && r.syndrome.IsFatal() {
				q.failAfterNak(r.syndrome.Code())
			}
		case atomicResponse:
			p.Opcode = wire.RCAtomicAcknowledge
			p.AETH.Syndrome = wire.Ack(wire.AckUnlimited)
			p.AtomicAck = r.value
			q.respond(out, p, nil, 0)
			q.responses.pop()
		case atomicWriteResponse:
			p.Opcode = wire.RCReadResponseOnly
			p.AETH.Syndrome = wire.Ack(wire.AckUnlimited)
			q.respond(out, p, nil, 0)
			q.responses.pop()
		case readResponse:
			if q.unconfirmed >= maxUnconfirmed {
				q.counters.ReadsAbandoned++
				q.responses.pop()
				continue
			}
			if r.long && q.controlled {
				q.rate.Sent(int(min(r.left, q.largest)), now)
			}
			more, fault := q.sendReadResponse(out, p, r)
			if !more {
				q.responses.pop()
			}
			if fault != 0 {
				q.countNak(fault)
				q.failAfterNak(fault)
			}
		}
	}
	return budget
}

// maxUnconfirmed is how many bytes of read responses leave while nothing arrives from the
// peer. A live peer that asks for more at once, as adapters do, asks for the rest after its
// time-out. A peer that never responds gets no more.
const maxUnconfirmed = 64 << 20

// sendReadResponse sends one packet of the response to a read. It reports whether more packets
// follow. fault is the code of the NAK if the memory cannot be read, otherwise zero.
func (q *QP) sendReadResponse(out Output, p *wire.Packet, r *response) (more bool, fault wire.NakCode) {
	n := min(r.left, q.largest)
	pieces := q.pieces[:0]
	if n > 0 {
		b, ok, unreadable := r.from.read(n, &q.bounce)
		if !ok || unreadable != dma.NoFault {
			q.sendNak(out, p, wire.NakRemoteAccess)
			if ok {
				return false, wire.NakRemoteAccess
			}
			return false, 0 // the memory was taken away during the read
		}
		pieces = append(pieces, b)
		if cap(pieces) > cap(q.pieces) {
			q.pieces = pieces
		}
	}
	last := r.left == n
	switch {
	case !r.begun && last:
		p.Opcode = wire.RCReadResponseOnly
	case !r.begun:
		p.Opcode = wire.RCReadResponseFirst
	case last:
		p.Opcode = wire.RCReadResponseLast
	default:
		p.Opcode = wire.RCReadResponseMiddle
	}
	p.AETH.Syndrome = wire.Ack(wire.AckUnlimited)
	p.Pad = uint8(-n & 3)
	if !q.respond(out, p, pieces, int(n)) {
		q.sendNak(out, p, wire.NakRemoteOperation)
		return false, wire.NakRemoteOperation
	}
	q.unconfirmed += uint64(n)
	r.begun = true
	r.psn = wire.PSNAdd(r.psn, q.packetsOf(n))
	r.from.addr += uint64(n)
	r.left -= n
	return !last, 0
}

func (q *QP) respond(out Output, p *wire.Packet, pieces [][]byte, n int) bool {
	p.Opcode = p.Opcode.On(q.service)
	return out.Send(p, pieces, n)
}

// sendNak sends a refusal in place of a response.
func (q *QP) sendNak(out Output, p *wire.Packet, code wire.NakCode) {
	p.Opcode, p.Pad = wire.RCAcknowledge, 0
	p.AETH.Syndrome = wire.Nak(code)
	q.respond(out, p, nil, 0)
}

// execution is a read, atomic or atomic write that a responder has executed.
type execution struct {
	opcode   wire.Opcode
	psn      uint32 // of its first response
	packets  int    // of responses
	rkey     uint32
	length   uint32 // of a read or atomic write, in bytes
	addr     uint64
	domain   uint32 // of a read
	original uint64 // result of an atomic
}

// executions are the latest reads, atomics and atomic writes that a responder has executed, as
// many as its peer may have outstanding. Only reads may be executed again (IBTA 9.4.5.3): an
// atomic write would replace what others have written since. A request with an old sequence number is answered only if it
// repeats one of them, whole or from a later packet on (IBTA 9.7.5.1.4). Otherwise a peer
// could try keys without limit, since old requests do not end a connection.
type executions struct{ Ring[execution] }

// add remembers an execution. It replaces the oldest if there is no room.
func (x *executions) add(e execution) {
	if x.Full() {
		x.Pop()
	}
	*x.Push() = e
}

// repeatedBy returns the execution that a request repeats, or nil.
func (x *executions) repeatedBy(p *wire.Packet, mtu uint32) *execution {
	for i := x.tail; i != x.head; i-- {
		e := x.at(i - 1)
		behind := wire.PSNDiff(p.PSN, e.psn)
		if p.Opcode != e.opcode || behind < 0 || int(behind) >= e.packets {
			continue
		}
		if p.Opcode.HasAtomicETH() {
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
