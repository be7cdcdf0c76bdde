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
	"github.com/verbena-rdma/verbena/verbs"
)

var (
	// ErrCorrupt: the other end has written to shared memory what a correct one never writes.
	ErrCorrupt = errors.New("the peer violated the protocol for shared memory")
	// ErrCutOff: the other end is gone without a closing message, as when its process has died.
	ErrCutOff = errors.New("the channel ended without a closing message")
	// ErrStalled: the other process has stopped during a copy from memory that its owner
	// revokes.
	ErrStalled = errors.New("the peer process stopped during a copy")
)

// A ring is a piece of shared memory: a page of control words, each on its own cache line,
// followed by the records. Positions count bytes and only grow; the ring's length maps them
// into the ring.
const (
	controlLen   = 4096
	ringLen      = 1 << 20 // bytes for the records of one direction
	headAt       = 0       // position up to which the consumer has taken records; written by the consumer
	consumerWait = 64      // 1: the consumer wants to be woken for records
	producerWait = 128     // 1: the producer wants to be woken for room
	copyingAt    = 192     // position plus 1 of the record whose references the consumer reads; 0: none
)

// A record has a head, the packet's headers, and then the payload or references to it. The
// first word of the head holds the size, the kind, the length of the headers, and the path MTU
// of the sender; the second word holds the length of what follows the headers. A record
// starts on a cache line and is contiguous. If the room before the end of the ring is too
// small, a filler record takes it.
//
// After the last record the consumer finds a zero head. Publishing the next record writes its
// head there, so a small packet costs the transfer of one cache line.
const (
	recordAlign  = 64
	recordHead   = 16
	maxHeaders   = 112
	referenceLen = 16

	kindFiller    = 1
	kindInline    = 2 // the payload follows
	kindReference = 3 // references to the payload follow
	kindRevoked   = 4 // the packet is lost: its payload was revoked, or cannot be read
)

const (
	// MaxInline is the longest payload that goes through a ring, in bytes.
	MaxInline = 64 << 10
	// MaxReferences is how many pieces of exported memory a record can refer to.
	MaxReferences = 32
	// maxRecord is the room that any record needs, including the largest filler before it.
	maxRecord = 2 * ((recordHead + maxHeaders + MaxInline + recordAlign - 1) &^ (recordAlign - 1))
)

// pendingCheckInterval is after how many records with references the producer checks how many
// of them have been taken.
const pendingCheckInterval = 256

// payloadAt is the offset of the payload in a record, aligned for a fast copy.
func payloadAt(headers int) int { return (recordHead + headers + 15) &^ 15 }

// word returns a control word, or the first word of a record's head.
func word(memory []byte, at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&memory[at])) }

// Reference is the place of a piece of payload in exported memory.
type Reference struct {
	Memory uint32 // its number
	Length uint32
	Offset uint64
}

// producer is the writing end of a ring. The consumer sees what it writes only after publish.
type producer struct {
	memory    []byte
	records   []byte
	tail      uint64 // end of what has been written
	published uint64
	firstHead uint64 // of the first record that is not published
	head      uint64 // end of what the consumer has taken, when last read
	cleared   uint64 // all places for heads after the last record, up to here, are zero

	pending fifo.Queue[pendingReference]
	waited  time.Duration // total time spent waiting for copies of the consumer
}

// pendingReference is a record with references that the consumer may not have taken yet.
type pendingReference struct {
	at       uint64
	head     uint64 // of the record
	owner    uint32
	from, to uintptr // the payload lies between these addresses
}

func newProducer(memory []byte) producer {
	return producer{memory: memory, records: memory[controlLen:]}
}

// free returns the free room, without the place of the zero head after the last record.
func (p *producer) free() int { return len(p.records) - recordAlign - int(p.tail-p.head) }

// room returns how many bytes can be written. The number is exact if it is less than needed.
// Otherwise there may be more, since the consumer's control word is not read: that costs the
// transfer of a cache line.
func (p *producer) room(needed int) (int, error) {
	if free := p.free(); free >= needed {
		return free, nil
	}
	head := word(p.memory, headAt).Load()
	if head < p.head || head > p.published {
		return 0, ErrCorrupt
	}
	p.head = head
	return p.free(), nil
}

// taken reports whether the consumer has taken everything up to a position.
func (p *producer) taken(position uint64) bool {
	_, err := p.room(len(p.records))
	return err != nil || p.head >= position // after an error, the channel is about to end
}

// at returns the offset of a position in the ring.
func (p *producer) at(position uint64) int { return int(position) & (len(p.records) - 1) }

// place writes the head of a record. It returns the head, the room for the packet's headers,
// and n bytes of room after them. The caller has checked that there is room for maxRecord.
func (p *producer) place(kind byte, mtu verbs.MTU, headersLen, n int) (headers, payload []byte, head uint64) {
	begin := payloadAt(headersLen)
	size := (begin + n + recordAlign - 1) &^ (recordAlign - 1)
	at := p.at(p.tail)
	if left := len(p.records) - at; left < size {
		p.putHead(left, kindFiller, 0, 0, 0)
		at = 0
	}
	record := p.records[at : at+size]
	return record[recordHead:begin], record[begin:], p.putHead(size, kind, mtu, headersLen, n)
}

// putHead writes the head of the next record, and a zero head after it. It leaves out the
// head's first word if that would make the record visible to the consumer.
func (p *producer) putHead(size int, kind byte, mtu verbs.MTU, headers, n int) (head uint64) {
	head = uint64(size) | uint64(kind)<<32 | uint64(headers)<<40 | uint64(mtu)<<48
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

// clear writes a zero head at a position.
func (p *producer) clear(position uint64) {
	binary.NativeEndian.PutUint64(p.records[p.at(position):], 0)
	p.cleared = position
}

// clearAhead is how many cache lines are cleared in advance.
const clearAhead = 64

// prepare clears the heads of the next records, while the consumer works. That also fetches
// their cache lines; otherwise the next record would wait for these before it is published.
func (p *producer) prepare() {
	end := p.tail + uint64(min(clearAhead*recordAlign, p.free()&^(recordAlign-1)))
	for at := max(p.cleared, p.tail) + recordAlign; at <= end; at += recordAlign {
		p.clear(at)
	}
}

// putInline writes a packet with its payload of n bytes, at most MaxInline. If the payload
// cannot be read, it reports false, and the packet is lost.
func (p *producer) putInline(packet *wire.Packet, mtu verbs.MTU, pieces [][]byte, n int) bool {
	headers, payload, head := p.place(kindInline, mtu, packet.Opcode.HeaderLen(), n)
	packet.PutHeaders(headers)
	for _, piece := range pieces {
		if dma.Copy(payload[:len(piece)], piece) != dma.NoFault {
			p.discard(p.tail-uint64(uint32(head)), head)
			return false
		}
		payload = payload[len(piece):]
	}
	return true
}

// discard makes the consumer skip the record at a position.
func (p *producer) discard(at, head uint64) {
	head = head&^(0xff<<32) | kindRevoked<<32
	if at == p.published {
		p.firstHead = head
	} else {
		word(p.records, p.at(at)).Store(head)
	}
}

// putReferences writes a packet whose payload is in pieces, at most MaxReferences, which refs
// name. It can be revoked by owner, or by the memory of the payload.
func (p *producer) putReferences(packet *wire.Packet, mtu verbs.MTU, pieces [][]byte, refs []Reference, owner uint32) {
	if p.pending.Len()%pendingCheckInterval == pendingCheckInterval-1 {
		_, _ = p.room(len(p.records)) // the next call of room returns an error again
	}
	p.dropConsumed()
	headers, payload, head := p.place(kindReference, mtu, packet.Opcode.HeaderLen(), len(refs)*referenceLen)
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

// dropConsumed forgets records with references that have been taken. Their room may be in use
// again.
func (p *producer) dropConsumed() {
	for p.pending.Len() > 0 && p.pending.Front().at < p.head {
		p.pending.Pop()
	}
}

// bounds returns the lowest address of the pieces, and the end of the highest.
func bounds(pieces [][]byte) (from, to uintptr) {
	from = ^uintptr(0)
	for _, piece := range pieces {
		at := uintptr(unsafe.Pointer(unsafe.SliceData(piece)))
		from, to = min(from, at), max(to, at+uintptr(len(piece)))
	}
	return from, to
}

// revoke discards the records with references for which matches is true and that the consumer
// has not taken yet. It waits for the consumer's copy of such a payload, so that the memory
// can be reused after revoke. If the copy does not end in time, revoke reports false, and the
// copy counts as lost (record.intact).
func (p *producer) revoke(matches func(*pendingReference) bool) bool {
	if p.pending.Len() == 0 {
		return true
	}
	_, err := p.room(len(p.records))
	if err != nil {
		return true // the channel is about to end
	}
	p.dropConsumed()
	first, last := ^uint64(0), uint64(0) // positions of the first and the last revoked record
	for range p.pending.Len() {
		r := p.pending.Pop()
		if !matches(&r) {
			p.pending.Push(r)
			continue
		}
		first, last = min(first, r.at), r.at
		p.discard(r.at, r.head)
	}
	// The consumer announces a copy before it reads the head again.
	copying := word(p.memory, copyingAt).Load()
	return copying <= first || copying > last+1 || p.awaitCopied(copying)
}

// maxCopyWait bounds the wait for a copy of MaxInline bytes. The copy takes microseconds, but
// the other process may have lost its processor. maxCopyWaits bounds the sum of all waits for
// a channel's peer, which may prolong them on purpose.
const (
	maxCopyWait  = 20 * time.Millisecond
	maxCopyWaits = 200 * time.Millisecond
)

// awaitCopied waits until the consumer has ended a copy, and reports false if that takes too
// long.
func (p *producer) awaitCopied(copying uint64) bool {
	at, begun := word(p.memory, copyingAt), time.Now()
	limit := min(maxCopyWait, maxCopyWaits-p.waited)
	for at.Load() == copying {
		if time.Since(begun) >= limit {
			p.waited = maxCopyWaits // no further waits: the channel will end
			return false
		}
		runtime.Gosched()
	}
	p.waited += time.Since(begun)
	return true
}

// publish makes what has been written visible to the consumer. It reports whether the caller
// must wake the consumer.
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

// armWakeup asks to be woken when the consumer has taken something. It reports false if there
// is room for a record now.
func (p *producer) armWakeup() (bool, error) {
	waits := word(p.memory, producerWait)
	waits.Store(1)
	free, err := p.room(maxRecord)
	if err != nil || free >= maxRecord {
		waits.Store(0)
		return false, err
	}
	return true, nil
}

// record is a record that was taken. headers is a copy; payload is in shared memory.
type record struct {
	headers    [maxHeaders]byte
	headersLen int
	mtu        verbs.MTU // as the producer wrote it: any number
	inline     bool
	payload    []byte
	head       *atomic.Uint64 // the record's head in the ring
	copying    *atomic.Uint64 // the control word
}

// intact ends the copy of a payload that the record refers to, and reports whether the payload
// was still what the producer sent.
func (r *record) intact() bool {
	r.copying.Store(0)
	return byte(r.head.Load()>>32) == kindReference
}

// consumer is the reading end of a ring.
type consumer struct {
	memory   []byte
	records  []byte
	head     uint64 // end of what has been taken
	released uint64
	copies   bool // a copy was announced, and may not have ended
}

func newConsumer(memory []byte) consumer {
	return consumer{memory: memory, records: memory[controlLen:]}
}

// peek returns the first word of the next record's head: zero if there is no record.
func (c *consumer) peek() uint64 {
	return word(c.records, int(c.head)&(len(c.records)-1)).Load()
}

// pending reports whether there are records to take.
func (c *consumer) pending() bool { return c.peek() != 0 }

// next takes a record. It reports false if there is none. What r holds is valid until release
// is called.
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
			return false, ErrCorrupt
		}
		c.head += uint64(size)
		if kind == kindFiller {
			if size != len(b) {
				return false, ErrCorrupt
			}
			continue
		}
		if kind == kindRevoked {
			continue // like a lost packet
		}
		if kind != kindInline && kind != kindReference || headers > maxHeaders ||
			n > MaxInline || payloadAt(headers)+int(n) > size {
			return false, ErrCorrupt
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
		r.mtu = verbs.MTU(first >> 48)
		r.headersLen, r.inline, r.payload = headers, kind == kindInline, b[begin:begin+int(n):begin+int(n)]
		return true, nil
	}
}

// endCopy ends the copy from the last record taken.
func (c *consumer) endCopy() {
	if c.copies {
		word(c.memory, copyingAt).Store(0)
		c.copies = false
	}
}

// release frees the room of the records taken. It reports whether the caller must wake the
// producer.
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

// armWakeup asks to be woken for records. It reports true if there are none now.
func (c *consumer) armWakeup() bool {
	word(c.memory, consumerWait).Store(1)
	return !c.pending()
}
