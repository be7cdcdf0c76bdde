package local

import (
	"encoding/binary"
	"errors"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/soft/internal/roce/dma"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

var (
	// ErrDisorder: the other end has put something into shared memory that it never would.
	ErrDisorder = errors.New("the shared memory is in disorder")
	// ErrCutOff: the other end is gone without a goodbye, as when its process has died.
	ErrCutOff = errors.New("the channel has been cut off")
	// ErrStandsStill: the other process does not go on in the midst of a copy from memory that its
	// owner takes back.
	ErrStandsStill = errors.New("the other process stands still in the midst of a copy")
)

// A ring is a piece of shared memory: a page of control words, each on a cache line of its
// own, and then the records. Positions count bytes for ever, and wrap in the ring.
const (
	controlLen   = 4096
	ringLen      = 1 << 20 // the room for records of one direction
	headAt       = 0       // up to where records have been taken; the consumer's
	consumerWait = 64      // 1: the consumer wants to be woken for records
	producerWait = 128     // 1: the producer wants to be woken for room
	copyingAt    = 192     // of the record whose references the consumer reads: its position, and one; 0: none
)

// A record begins with its head and the packet's headers, and goes on, right behind them, with
// the payload or with references to it. It begins on a cache line, and lies in one piece; where
// there is no room before the end of the ring, a filler takes it.
//
// Behind the last record the consumer finds a head of zero, which becomes that of the next one
// when it is shown. So a small packet costs one cache line on its way.
const (
	recordAlign  = 64
	recordHead   = 16
	maxHeaders   = 112
	referenceLen = 16

	kindFiller    = 1
	kindInline    = 2 // the payload follows
	kindReference = 3 // references to the payload follow
	kindRevoked   = 4 // the packet is lost: its program has the memory of its payload back, or cannot read it
)

const (
	// MaxInline is the longest payload that goes through a ring, in bytes.
	MaxInline = 64 << 10
	// MaxReferences is how many pieces of shown memory a record can refer to.
	MaxReferences = 32
	// maxRecord is the room that any record needs, with the filler before it at worst.
	maxRecord = 2 * ((recordHead + maxHeaders + MaxInline + recordAlign - 1) &^ (recordAlign - 1))
)

// pendingLook is after how many records with references the producer looks how many of them have
// been taken.
const pendingLook = 256

// payloadAt is where the payload of a record begins, aligned for a fast copy.
func payloadAt(headers int) int { return (recordHead + headers + 15) &^ 15 }

// word is a control word, or the first of a record's head.
func word(memory []byte, at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&memory[at])) }

// Reference says where a piece of payload lies in memory that was shown.
type Reference struct {
	Memory uint32 // its number
	Length uint32
	Offset uint64
}

// producer is the writing end of a ring. Nothing is to be seen of what it writes until
// publish is called.
type producer struct {
	memory    []byte
	records   []byte
	tail      uint64 // what has been written
	published uint64
	firstHead uint64 // of the first record that the consumer has not been shown
	head      uint64 // what the consumer has taken, as it was last read
	cleared   uint64 // where records can begin, from the last one to there, are heads of zero

	pending fifo.Queue[pendingReference]
	waited  time.Duration // for copies of the consumer
}

// pendingReference is a record with references, which may not have been taken yet.
type pendingReference struct {
	at       uint64
	head     uint64 // of the record
	owner    uint32
	from, to uintptr // the payload lies between these addresses
}

func newProducer(memory []byte) producer {
	return producer{memory: memory, records: memory[controlLen:]}
}

// free is the room beside the head of zero behind the last record.
func (p *producer) free() int { return len(p.records) - recordAlign - int(p.tail-p.head) }

// room is how many bytes can be written: exactly, where it is less than needed. Else the
// consumer may have released more: reading its word costs a transfer of a cache line.
func (p *producer) room(needed int) (int, error) {
	if free := p.free(); free >= needed {
		return free, nil
	}
	head := word(p.memory, headAt).Load()
	if head < p.head || head > p.published {
		return 0, ErrDisorder
	}
	p.head = head
	return p.free(), nil
}

// at is the place in the ring of a position.
func (p *producer) at(position uint64) int { return int(position) & (len(p.records) - 1) }

// place writes the head of a record, and returns it and the room for the packet's headers and for
// n bytes after them. The caller knows that there is room for maxRecord.
func (p *producer) place(kind byte, headersLen, n int) (headers, payload []byte, head uint64) {
	begin := payloadAt(headersLen)
	size := (begin + n + recordAlign - 1) &^ (recordAlign - 1)
	at := p.at(p.tail)
	if left := len(p.records) - at; left < size {
		p.putHead(left, kindFiller, 0, 0)
		at = 0
	}
	record := p.records[at : at+size]
	return record[recordHead:begin], record[begin:], p.putHead(size, kind, headersLen, n)
}

// putHead writes the head of the next record, but for its first word if that would show it to
// the consumer, and a head of zero behind it.
func (p *producer) putHead(size int, kind byte, headers, n int) (head uint64) {
	head = uint64(size) | uint64(kind)<<32 | uint64(headers)<<40
	b := p.records[p.at(p.tail):]
	binary.NativeEndian.PutUint64(b[8:], uint64(n))
	if p.tail == p.published {
		p.firstHead = head
	} else {
		binary.NativeEndian.PutUint64(b, head)
	}
	if p.tail += uint64(size); p.tail > p.cleared {
		p.clear(p.tail)
	}
	return head
}

// clear puts a head of zero at a position.
func (p *producer) clear(position uint64) {
	binary.NativeEndian.PutUint64(p.records[p.at(position):], 0)
	p.cleared = position
}

// clearAhead is how many cache lines are cleared in advance.
const clearAhead = 64

// prepare clears what the next records will need, and fetches their cache lines by that, while the
// consumer works: else the next record would wait for them before it is shown.
func (p *producer) prepare() {
	end := p.tail + uint64(min(clearAhead*recordAlign, p.free()&^(recordAlign-1)))
	for at := max(p.cleared, p.tail) + recordAlign; at <= end; at += recordAlign {
		p.clear(at)
	}
}

// putInline writes a packet with its payload of n bytes, at most MaxInline. It reports false if
// they cannot be read: then the packet is lost.
func (p *producer) putInline(packet *wire.Packet, pieces [][]byte, n int) bool {
	headers, payload, head := p.place(kindInline, packet.Opcode.HeaderLen(), n)
	packet.PutHeaders(headers)
	for _, piece := range pieces {
		if dma.Copy(payload[:len(piece)], piece) != dma.NoFault {
			p.lose(p.tail-uint64(uint32(head)), head)
			return false
		}
		payload = payload[len(piece):]
	}
	return true
}

// lose has the consumer pass over the record at a position.
func (p *producer) lose(at, head uint64) {
	head = head&^(0xff<<32) | kindRevoked<<32
	if at == p.published {
		p.firstHead = head
	} else {
		word(p.records, p.at(at)).Store(head)
	}
}

// putReferences writes a packet whose payload lies in pieces, which the references name: at most
// MaxReferences. The owner, and whoever takes back memory of the payload, can revoke it.
func (p *producer) putReferences(packet *wire.Packet, pieces [][]byte, refs []Reference, owner uint32) {
	if p.pending.Len()%pendingLook == pendingLook-1 {
		_, _ = p.room(len(p.records)) // an error is found again where room is asked for
	}
	p.dropTaken()
	headers, payload, head := p.place(kindReference, packet.Opcode.HeaderLen(), len(refs)*referenceLen)
	packet.PutHeaders(headers)
	from, to := bounds(pieces)
	p.pending.Push(pendingReference{at: p.tail - uint64(uint32(head)), head: head, owner: owner, from: from, to: to})
	for _, r := range refs {
		binary.LittleEndian.PutUint32(payload, r.Memory)
		binary.LittleEndian.PutUint32(payload[4:], r.Length)
		binary.LittleEndian.PutUint64(payload[8:], r.Offset)
		payload = payload[referenceLen:]
	}
}

// dropTaken forgets records with references that have been taken, whose places others may have.
func (p *producer) dropTaken() {
	for p.pending.Len() > 0 && p.pending.Front().at < p.head {
		p.pending.Pop()
	}
}

// bounds are the lowest address of the pieces, and that behind the highest.
func bounds(pieces [][]byte) (from, to uintptr) {
	from = ^uintptr(0)
	for _, piece := range pieces {
		at := uintptr(unsafe.Pointer(unsafe.SliceData(piece)))
		from, to = min(from, at), max(to, at+uintptr(len(piece)))
	}
	return from, to
}

// revoke lets the consumer take none of the records with references that are meant, if it has
// not taken them yet. One whose payload it is copying is waited for, so that the memory can be
// used for something else from now on. If the copy does not end in time, revoke reports false:
// what is copied from now on counts as lost (record.intact).
func (p *producer) revoke(meant func(*pendingReference) bool) bool {
	if p.pending.Len() == 0 {
		return true
	}
	_, err := p.room(len(p.records))
	if err != nil {
		return true // the channel is about to end
	}
	p.dropTaken()
	first, last := ^uint64(0), uint64(0) // of those revoked
	for range p.pending.Len() {
		r := p.pending.Pop()
		if !meant(&r) {
			p.pending.Push(r)
			continue
		}
		first, last = min(first, r.at), r.at
		p.lose(r.at, r.head)
	}
	// The consumer announces a copy before it looks at the head again.
	copying := word(p.memory, copyingAt).Load()
	return copying <= first || copying > last+1 || p.awaitCopied(copying)
}

// maxCopyWait is how long a copy of MaxInline bytes, which takes microseconds, is waited for: the
// other process may have lost its processor meanwhile. All waits for a channel's peer, which may
// prolong them on purpose, take no longer than maxCopyWaits.
const (
	maxCopyWait  = 20 * time.Millisecond
	maxCopyWaits = 200 * time.Millisecond
)

// awaitCopied waits until the consumer has ended a copy, and reports whether it has in time.
func (p *producer) awaitCopied(copying uint64) bool {
	at, begun := word(p.memory, copyingAt), time.Now()
	limit := min(maxCopyWait, maxCopyWaits-p.waited)
	for at.Load() == copying {
		if time.Since(begun) >= limit {
			p.waited = maxCopyWaits // once is enough: the channel is to end
			return false
		}
		runtime.Gosched()
	}
	p.waited += time.Since(begun)
	return true
}

// publish shows the consumer what has been written. It reports whether the consumer is to
// be woken.
func (p *producer) publish() (wake bool) {
	if p.published == p.tail {
		return false
	}
	word(p.records, p.at(p.published)).Store(p.firstHead)
	p.published = p.tail
	waits := word(p.memory, consumerWait)
	wake = waits.Load() == 1 && waits.CompareAndSwap(1, 0)
	p.prepare()
	return wake
}

// awaitRoom asks to be woken when the consumer has taken something. It reports false if
// there is room for a record meanwhile.
func (p *producer) awaitRoom() (bool, error) {
	waits := word(p.memory, producerWait)
	waits.Store(1)
	free, err := p.room(maxRecord)
	if err != nil || free >= maxRecord {
		waits.Store(0)
		return false, err
	}
	return true, nil
}

// record is one that was taken. Its headers are a copy; Payload is in shared memory.
type record struct {
	headers    [maxHeaders]byte
	headersLen int
	inline     bool
	payload    []byte
	head       *atomic.Uint64 // of the record in the ring
	copying    *atomic.Uint64 // the control word
}

// intact ends the copy of a payload that the record refers to, and reports whether it was what
// its producer meant.
func (r *record) intact() bool {
	r.copying.Store(0)
	return byte(r.head.Load()>>32) == kindReference
}

// consumer is the reading end of a ring.
type consumer struct {
	memory   []byte
	records  []byte
	head     uint64 // what has been taken
	released uint64
	copies   bool // a copy was announced, and may not have ended
}

func newConsumer(memory []byte) consumer {
	return consumer{memory: memory, records: memory[controlLen:]}
}

// peek is the first word of the next record's head: zero if there is none.
func (c *consumer) peek() uint64 {
	return word(c.records, int(c.head)&(len(c.records)-1)).Load()
}

// pending reports whether there are records to be taken.
func (c *consumer) pending() bool { return c.peek() != 0 }

// next takes a record. It reports false if there is none. What r holds is valid until
// release is called.
func (c *consumer) next(r *record) (bool, error) {
	for {
		c.endCopy()
		first := c.peek()
		if first == 0 {
			return false, nil
		}
		b := c.records[int(c.head)&(len(c.records)-1):]
		n := binary.NativeEndian.Uint64(b[8:])
		size, kind, headers := int(uint32(first)), byte(first>>32), int(byte(first>>40))
		if size < recordHead || size%recordAlign != 0 || size > len(b) || c.head+uint64(size)-c.released > uint64(len(c.records)) {
			return false, ErrDisorder
		}
		c.head += uint64(size)
		if kind == kindFiller {
			if size != len(b) {
				return false, ErrDisorder
			}
			continue
		}
		if kind == kindRevoked {
			continue // as if it had been lost
		}
		if kind != kindInline && kind != kindReference || headers > maxHeaders ||
			n > MaxInline || payloadAt(headers)+int(n) > size {
			return false, ErrDisorder
		}
		begin := payloadAt(headers)
		copy(r.headers[:headers], b[recordHead:])
		r.head = word(b, 0)
		if kind == kindReference {
			r.copying, c.copies = word(c.memory, copyingAt), true
			r.copying.Store(c.head - uint64(size) + 1)
			if byte(r.head.Load()>>32) != kindReference {
				continue // revoked meanwhile
			}
		}
		r.headersLen, r.inline, r.payload = headers, kind == kindInline, b[begin:begin+int(n):begin+int(n)]
		return true, nil
	}
}

// endCopy ends the copy from the record that was taken last.
func (c *consumer) endCopy() {
	if c.copies {
		word(c.memory, copyingAt).Store(0)
		c.copies = false
	}
}

// release gives back the room of what was taken. It reports whether the producer is to be
// woken.
func (c *consumer) release() (wake bool) {
	c.endCopy()
	if c.released == c.head {
		return false
	}
	c.released = c.head
	word(c.memory, headAt).Store(c.head)
	waits := word(c.memory, producerWait)
	return waits.Load() == 1 && waits.CompareAndSwap(1, 0)
}

// await asks to be woken for records. It reports whether there are none now.
func (c *consumer) await() bool {
	word(c.memory, consumerWait).Store(1)
	return !c.pending()
}
