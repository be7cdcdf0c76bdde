package transport

import (
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

type responseKind uint8

const (
	ackResponse responseKind = iota // positive or negative
	readResponse
	atomicResponse
)

// response is one that waits to be sent. Responses leave in the order of the
// requests.
type response struct {
	kind     responseKind
	syndrome wire.Syndrome
	psn      uint32 // of a read: of the next packet
	msn      uint32
	from     grant // of a read
	left     uint32
	begun    bool // a read's first packet has left
	long     bool // a read of more packets than shortRead
	value    uint64
}

// responseQueue is a bounded ring. It has room for what a peer may have
// outstanding and as much again in repetitions; a request that finds it crowded
// is dropped as if it had been lost, and comes again.
type responseQueue struct{ Ring[response] }

// crowded leaves room for the acknowledgement and the NAK that may follow.
func (r *responseQueue) crowded() bool { return r.Len() >= r.Depth()-2 }

func (r *responseQueue) first() *response { return r.at(r.head) }

func (r *responseQueue) push(x response) {
	if r.Len() == 0 {
		r.empty() // the first place again, as in the send queue
	}
	if place := r.Push(); place != nil {
		*place = x
	}
}

func (r *responseQueue) pop() { r.Pop().from = grant{} }

// mergeAck lets an acknowledgement that still waits at the end of the queue
// cover one more request.
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

// dropReads takes the reads out of the queue: the memory is the program's again.
func (r *responseQueue) dropReads() {
	for range r.Len() {
		x := *r.first()
		if r.pop(); x.kind != readResponse {
			r.push(x)
		}
	}
}

// sendResponses sends waiting responses, as far as their rate allows, and returns what
// is left of budget.
func (q *QP) sendResponses(out Output, now time.Duration, budget int) int {
	q.responsesAt = 0
	for budget > 0 && q.responses.Len() > 0 {
		r := q.responses.first()
		if r.long && q.rate.Bounded() {
			if q.responsesAt = q.rate.Wait(now); q.responsesAt != 0 {
				return budget
			}
		}
		p := &q.packet
		p.Begin(defaultPKey, q.attr.DestQPN, r.psn)
		p.AETH = wire.AETH{Syndrome: r.syndrome, MSN: r.msn}
		budget--
		switch r.kind {
		case ackResponse:
			p.Opcode = wire.RCAcknowledge
			out.Send(p, nil, 0)
			q.responses.pop()
			if q.refusing && r.psn == q.expected && r.syndrome.IsFatal() {
				q.failRefusing(r.syndrome.Code())
			}
		case atomicResponse:
			p.Opcode = wire.RCAtomicAcknowledge
			p.AETH.Syndrome = wire.Ack(wire.AckUnlimited)
			p.AtomicAck = r.value
			out.Send(p, nil, 0)
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
			more, readable := q.sendReadResponse(out, p, r)
			if !more {
				q.responses.pop()
			}
			if !readable {
				q.failRefusing(wire.NakRemoteOperation)
			}
		}
	}
	return budget
}

// maxUnconfirmed is how many bytes of reads leave without a word from the peer. A peer that
// asks for more at once, as adapters do, and listens, asks for the rest when it has waited
// in vain for it. One that does not listen is not worth a network's time.
const maxUnconfirmed = 64 << 20

// sendReadResponse sends one packet of a read's response and reports whether more
// follow, and whether the memory can be read.
func (q *QP) sendReadResponse(out Output, p *wire.Packet, r *response) (more, readable bool) {
	n := min(r.left, q.largest)
	pieces := q.pieces[:0]
	if n > 0 {
		b, ok := r.from.read(n, &q.bounce)
		if !ok {
			// The memory was taken away during the read.
			sendNak(out, p, wire.NakRemoteAccess)
			return false, true
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
	if !out.Send(p, pieces, int(n)) {
		sendNak(out, p, wire.NakRemoteOperation)
		return false, false
	}
	q.unconfirmed += uint64(n)
	r.begun = true
	r.psn = wire.PSNAdd(r.psn, q.packetsOf(n))
	r.from.addr += uint64(n)
	r.left -= n
	return !last, true
}

// sendNak sends a refusal in place of a response.
func sendNak(out Output, p *wire.Packet, code wire.NakCode) {
	p.Opcode, p.Pad = wire.RCAcknowledge, 0
	p.AETH.Syndrome = wire.Nak(code)
	out.Send(p, nil, 0)
}

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
