package local

import (
	"encoding/binary"
	"errors"
	"sync/atomic"
	"unsafe"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/roce/dma"
)

var (
	// ErrDisorder: the other end has put something into shared memory that it never would.
	ErrDisorder = errors.New("the shared memory is in disorder")
	// ErrCutOff: the other end is gone without a goodbye, as when its process has died.
	ErrCutOff = errors.New("the channel has been cut off")
)

// A ring is a piece of shared memory: a page of control words, each on a cache line of its
// own, and then the records. Positions count bytes for ever, and wrap in the ring.
const (
	controlLen   = 4096
	ringLen      = 1 << 20 // the room for records of one direction
	tailAt       = 0       // up to where records are complete; the producer's
	headAt       = 64      // up to where they have been taken; the consumer's
	consumerWait = 128     // 1: the consumer wants to be woken for records
	producerWait = 192     // 1: the producer wants to be woken for room
)

// A record begins with its head and the packet's headers, and goes on with the payload or
// with references to it. It lies in one piece; where there is no room before the end of the
// ring, a filler takes it.
const (
	recordAlign  = 16
	recordHead   = 16
	maxHeaders   = 112 // room for them, so that the payload is aligned
	payloadAt    = recordHead + maxHeaders
	referenceLen = 16

	kindFiller    = 1
	kindInline    = 2 // the payload follows
	kindReference = 3 // references to the payload follow
	kindRevoked   = 4 // references followed, whose memory its program has back: the packet is lost
)

const (
	// MaxInline is the longest payload that goes through a ring, in bytes.
	MaxInline = 64 << 10
	// MaxReferences is how many pieces of shown memory a record can refer to.
	MaxReferences = 32
	// maxRecord is the room that any record needs, with the filler before it at worst.
	maxRecord = 2 * (payloadAt + MaxInline)
)

// word is a control word.
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
	head      uint64 // what the consumer has taken, as it was last read

	pending fifo.Queue[pendingReference]
}

// pendingReference is a record with references, which may not have been taken yet.
type pendingReference struct {
	at       uint64
	head     uint64 // of the record
	owner    uint32
	response bool
}

func newProducer(memory []byte) producer {
	return producer{memory: memory, records: memory[controlLen:]}
}

// room is how many bytes can be written, at least as far as is needed.
func (p *producer) room(needed int) (int, error) {
	free := len(p.records) - int(p.tail-p.head)
	if free >= needed {
		return free, nil
	}
	head := word(p.memory, headAt).Load()
	if head < p.head || head > p.published {
		return 0, ErrDisorder
	}
	p.head = head
	return len(p.records) - int(p.tail-p.head), nil
}

// place returns room for a record of n bytes after its head and headers, in one piece.
// The caller knows that there is room for maxRecord.
func (p *producer) place(kind byte, headers, n int) (record []byte) {
	size := (payloadAt + n + recordAlign - 1) &^ (recordAlign - 1)
	at := int(p.tail) & (len(p.records) - 1)
	if left := len(p.records) - at; left < size {
		putHead(p.records[at:], left, kindFiller, 0, 0)
		p.tail += uint64(left)
		at = 0
	}
	record = p.records[at : at+size]
	putHead(record, size, kind, headers, n)
	p.tail += uint64(size)
	return record
}

func putHead(b []byte, size int, kind byte, headers, n int) {
	binary.NativeEndian.PutUint64(b, uint64(size)|uint64(kind)<<32|uint64(headers)<<40)
	binary.NativeEndian.PutUint64(b[8:], uint64(n))
}

// putInline writes a packet with its payload of n bytes, at most MaxInline.
func (p *producer) putInline(headers []byte, pieces [][]byte, n int) {
	record := p.place(kindInline, len(headers), n)
	copy(record[recordHead:], headers)
	at := payloadAt
	for _, piece := range pieces {
		at += dma.Copy(record[at:], piece)
	}
}

// putReferences writes a packet whose payload the references name, at most MaxReferences, for
// an owner who can revoke it.
func (p *producer) putReferences(headers []byte, refs []Reference, owner uint32, response bool) {
	p.dropTaken()
	record := p.place(kindReference, len(headers), len(refs)*referenceLen)
	p.pending.Push(pendingReference{
		at: p.tail - uint64(len(record)), head: binary.NativeEndian.Uint64(record), owner: owner, response: response,
	})
	copy(record[recordHead:], headers)
	b := record[payloadAt:]
	for i, r := range refs {
		binary.LittleEndian.PutUint32(b[i*referenceLen:], r.Memory)
		binary.LittleEndian.PutUint32(b[i*referenceLen+4:], r.Length)
		binary.LittleEndian.PutUint64(b[i*referenceLen+8:], r.Offset)
	}
}

// dropTaken forgets records with references that have been taken, whose places others may have.
func (p *producer) dropTaken() {
	for p.pending.Len() > 0 && p.pending.Front().at < p.head {
		p.pending.Pop()
	}
}

// revoke has the consumer take none of the records with references that are meant, if it has
// not taken them yet. Who is about to finds out (record.intact), so that the memory can be used
// for something else from now on.
func (p *producer) revoke(meant func(*pendingReference) bool) {
	if p.pending.Len() == 0 {
		return
	}
	if _, err := p.room(len(p.records)); err != nil {
		return // the channel is about to end
	}
	p.dropTaken()
	for range p.pending.Len() {
		r := p.pending.Pop()
		if !meant(&r) {
			p.pending.Push(r)
			continue
		}
		word(p.records, int(r.at)&(len(p.records)-1)).Store(r.head&^(0xff<<32) | kindRevoked<<32)
	}
}

// publish shows the consumer what has been written. It reports whether the consumer is to
// be woken.
func (p *producer) publish() (wake bool) {
	if p.published == p.tail {
		return false
	}
	p.published = p.tail
	word(p.memory, tailAt).Store(p.tail)
	waits := word(p.memory, consumerWait)
	return waits.Load() == 1 && waits.CompareAndSwap(1, 0)
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
	fence      atomic.Uint64
}

// intact reports whether a payload that the record refers to was what its producer meant when it
// was read.
func (r *record) intact() bool {
	r.fence.Add(1) // the payload was read before
	return byte(r.head.Load()>>32) == kindReference
}

// consumer is the reading end of a ring.
type consumer struct {
	memory   []byte
	records  []byte
	head     uint64 // what has been taken
	released uint64
	tail     uint64 // as it was last read
}

func newConsumer(memory []byte) consumer {
	return consumer{memory: memory, records: memory[controlLen:]}
}

// pending reports whether there are records to be taken.
func (c *consumer) pending() bool {
	return c.head != c.tail || word(c.memory, tailAt).Load() != c.tail
}

// next takes a record. It reports false if there is none. What r holds is valid until
// release is called.
func (c *consumer) next(r *record) (bool, error) {
	for {
		if c.head == c.tail {
			tail := word(c.memory, tailAt).Load()
			if tail < c.tail || tail-c.released > uint64(len(c.records)) || tail%recordAlign != 0 {
				return false, ErrDisorder
			}
			if c.tail = tail; c.head == tail {
				return false, nil
			}
		}
		at := int(c.head) & (len(c.records) - 1)
		b := c.records[at:]
		first := binary.NativeEndian.Uint64(b)
		n := binary.NativeEndian.Uint64(b[8:])
		size, kind, headers := int(uint32(first)), byte(first>>32), int(byte(first>>40))
		if size < recordHead || size%recordAlign != 0 || size > len(b) || uint64(size) > c.tail-c.head {
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
			n > MaxInline || payloadAt+int(n) > size {
			return false, ErrDisorder
		}
		copy(r.headers[:headers], b[recordHead:])
		r.head = word(b, 0)
		r.headersLen, r.inline, r.payload = headers, kind == kindInline, b[payloadAt:payloadAt+int(n):payloadAt+int(n)]
		return true, nil
	}
}

// release gives back the room of what was taken. It reports whether the producer is to be
// woken.
func (c *consumer) release() (wake bool) {
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
