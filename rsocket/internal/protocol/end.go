package protocol

import "fmt"

// End is the state of one end of a connection. It belongs to one goroutine at a time. Its errors
// say what the peer has done that the protocol does not allow; the connection is then to be closed.
//
// Data messages have sequence numbers of 16 bits, which wrap. Each end grants the other the
// numbers up to which it may send. An end has told its peer of at most two receive buffers that
// have room, the entries of the peer's target SGL, which it writes in turn.
type End struct {
	queue uint16 // receive queue of this end, in data messages

	// What this end sends:
	peerQueue  uint16 // receive queue of the peer
	sent       uint16 // number of the next data message
	reach      uint16 // the first number that the peer does not take yet
	targets    [Entries]uint32
	announced  int  // targets that have room: the first ones
	nextTarget int  // index in this end's target SGL that the peer writes next
	answerDue  bool // the peer has withdrawn its buffers, and waits for Withdrawn: it announces none
	sentEnd    bool // a shutdown or disconnect message
	sentBye    bool // a disconnect message

	// What this end receives:
	arrived     uint16 // number of the next data message
	granted     uint16 // the first number that the peer may not use yet
	grantDue    bool
	nextEntry   int  // index in the peer's target SGL that this end writes next
	withdraws   bool // the peer answers Withdraw messages
	withdrawing bool // it has not answered one yet
	ended       bool // the peer sends no more data
	gone        bool // the peer receives nothing any more either
}

// NewEnd is an end with a receive queue for so many data messages, which has sent its Hello.
func NewEnd(queue uint16) End { return End{queue: queue, granted: queue, nextTarget: 1, nextEntry: 1} }

// Meet takes the Hello of the peer.
func (e *End) Meet(h *Hello) {
	e.peerQueue, e.reach, e.withdraws = h.Credits, h.Credits, h.Withdrawals
	if h.Buffer.Length > 0 {
		e.targets[0], e.announced = h.Buffer.Length, 1
	}
}

// Event is what a message of the peer means.
type Event int

// The events.
const (
	Nothing   Event = iota // or more room to send: see Room
	Arrived                // data
	Announced              // the peer has written an entry to this end's target SGL: call Announce
	Ended                  // the peer sends no more data: see Ended and Gone
	Returned               // the peer writes no more to the buffers that it was told of
)

// Take takes a message of the peer: a write with immediate data of length bytes. room is the number
// of bytes left in the receive buffer that data arrives in.
func (e *End) Take(imm Imm, length, room int) (Event, error) {
	if op := imm.Op(); op != OpData && op != OpSGL && length != 0 {
		return Nothing, fmt.Errorf("a %v came with %d bytes of data", imm, length)
	}
	switch imm.Op() {
	case OpData:
		switch {
		case imm.Value() != length:
			return Nothing, fmt.Errorf("a %v came with %d bytes of data", imm, length)
		case e.ended:
			return Nothing, fmt.Errorf("a %v came after the end of the data", imm)
		case e.arrived == e.granted:
			return Nothing, fmt.Errorf("a %v came, for which no credit was left", imm)
		case length > room:
			return Nothing, fmt.Errorf("a %v came, but the receive buffer has room for %d bytes", imm, room)
		}
		e.arrived++
		e.grantDue = e.grantDue || e.granted-e.arrived <= e.queue/2
		return Arrived, nil
	case OpSGL:
		if n := imm.Sequence() - e.sent; n > e.peerQueue {
			return Nothing, fmt.Errorf("an %v came, which allows %d messages under way; the peer's receive queue has %d", imm, n, e.peerQueue)
		}
		switch e.reach = imm.Sequence(); {
		case length == EntrySize && e.answerDue: // it would be taken for one of the withdrawn buffers
			return Nothing, fmt.Errorf("a receive buffer was announced before the withdraw message was answered")
		case length == EntrySize && e.announced == Entries:
			return Nothing, fmt.Errorf("the peer has announced a third receive buffer while two have room")
		case length == EntrySize:
			return Announced, nil
		case length == 0:
			return Nothing, nil
		}
		return Nothing, fmt.Errorf("an %v came with %d bytes of data; an entry has %d", imm, length, EntrySize)
	case OpIomap:
		return Nothing, fmt.Errorf("a %v came, though this end has declined them", imm)
	case OpControl:
		switch imm.Value() {
		case Keepalive:
			return Nothing, nil
		case Shutdown, Disconnect:
			e.ended, e.gone = true, e.gone || imm.Value() == Disconnect
			return Ended, nil
		case Withdraw:
			if !e.withdraws {
				break
			}
			if e.answerDue {
				return Nothing, fmt.Errorf("a %v came before the last one was answered", imm)
			}
			e.announced, e.answerDue = 0, true
			return Nothing, nil
		case Withdrawn:
			if !e.withdrawing {
				return Nothing, fmt.Errorf("a %v came, which this end has not asked for", imm)
			}
			e.withdrawing = false
			return Returned, nil
		}
	}
	return Nothing, fmt.Errorf("a %v came, which has no meaning", imm)
}

// Announce takes the entry that the peer has written to this end's target SGL, at the index that
// Target has returned.
func (e *End) Announce(b Entry) error {
	if b.Length == 0 {
		return fmt.Errorf("the peer has announced a receive buffer of no bytes")
	}
	if err := b.Check(); err != nil {
		return fmt.Errorf("the peer has announced %w", err)
	}
	e.targets[e.announced] = b.Length
	e.announced++
	e.nextTarget = (e.nextTarget + 1) % Entries
	return nil
}

// Target is the index in this end's target SGL that the peer writes next.
func (e *End) Target() int { return e.nextTarget }

// Room is the number of bytes that the next data message may have; zero: it has to wait. They go to
// the oldest buffer of the peer that has room.
func (e *End) Room() int {
	if e.sent == e.reach || e.announced == 0 || e.gone {
		return 0
	}
	return int(min(e.targets[0], valueMask))
}

// Send returns the immediate data of a data message of n bytes, which Room allows. full: it fills
// the peer's buffer.
func (e *End) Send(n int) (imm Imm, full bool) {
	e.sent++
	if e.targets[0] -= uint32(n); e.targets[0] == 0 {
		e.targets[0] = e.targets[1]
		e.announced--
		full = true
	}
	return NewImm(OpData, n), full
}

// GrantDue reports whether the peer is to get more credits by now.
func (e *End) GrantDue() bool { return e.grantDue && !e.ended }

// Grant returns the immediate data of an SGL message. With a buffer, the message writes its entry to
// the peer's target SGL, at the index.
func (e *End) Grant(buffer bool) (imm Imm, index int) {
	e.granted, e.grantDue = e.arrived+e.queue, false
	index = e.nextEntry
	if buffer {
		e.nextEntry = (e.nextEntry + 1) % Entries
	}
	return NewImm(OpSGL, int(e.granted)), index
}

// Withdraw returns the message with which this end asks for its receive buffers, if the peer answers
// it. Until then, the peer must not be told of other buffers: see Withdrawing.
func (e *End) Withdraw() (imm Imm, ok bool) {
	if !e.withdraws || e.withdrawing || e.ended || e.gone || e.sentBye {
		return 0, false
	}
	e.withdrawing = true
	return NewImm(OpControl, Withdraw), true
}

// Withdraws reports whether the peer answers Withdraw messages.
func (e *End) Withdraws() bool { return e.withdraws }

// Withdrawing reports whether the peer has not answered Withdraw yet.
func (e *End) Withdrawing() bool { return e.withdrawing }

// AnswerDue reports whether the peer waits for Answer.
func (e *End) AnswerDue() bool { return e.answerDue && !e.sentBye }

// Answer returns the answer to the peer's Withdraw, to be sent behind all data messages.
func (e *End) Answer() Imm {
	e.answerDue = false
	return NewImm(OpControl, Withdrawn)
}

// Ended reports whether the peer sends no more data.
func (e *End) Ended() bool { return e.ended }

// Gone reports whether the peer receives nothing any more.
func (e *End) Gone() bool { return e.gone }

// Finish returns the control message that is due when all data was sent, if one is. closed: this
// end receives no more either. Call it until none is due.
func (e *End) Finish(closed bool) (imm Imm, due bool) {
	switch {
	case e.gone || e.sentBye:
		return 0, false
	case e.ended && !e.sentEnd, closed && !e.ended:
		e.sentEnd, e.sentBye = true, true
		return NewImm(OpControl, Disconnect), true
	case !e.sentEnd:
		e.sentEnd = true
		return NewImm(OpControl, Shutdown), true
	}
	return 0, false
}
