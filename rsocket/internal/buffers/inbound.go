package buffers

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/rsocket/internal/protocol"
)

const (
	// Smallest is the size of the memory that a connection begins with, and of the smallest buffer
	// beside it.
	Smallest = 8 << 10

	// A buffer that was filled faster than fastFill is followed by one twice as large, and one
	// that took longer than slowFill by one half as large.
	fastFill = 200 * time.Millisecond
	slowFill = 5 * time.Second
	// perLimit is how many of the largest buffers the limit has room for: the peer has two, and
	// stops when it has filled both before it gets another. So they must be large.
	perLimit = 2
)

// Buffer is a receive buffer: memory that the peer fills from the beginning to the end.
type Buffer struct {
	Exposed
	offset int // of data in the memory: zero except for the first buffer of a connection
	data   []byte
	filled int
	read   int
	ends   bool // it is not used again, since the peer has stopped writing to it
}

// Entry is the buffer, for the peer.
func (b *Buffer) Entry() protocol.Entry { return b.Exposed.Entry(b.offset, len(b.data)) }

func (b *Buffer) full() bool { return b.filled == len(b.data) }

// Inbound is the receive buffers of a connection, and what has arrived in them.
type Inbound struct {
	memory  *Memory
	first   *Buffer   // a part of the Base, whose memory is always there
	whole   []byte    // its memory
	buffers []*Buffer // that the peer knows and the program has not read, in order
	used    []*Buffer // read, to be used again
	size    int       // bytes of buffers
	failure error     // why one could not be released

	last  int           // size of the newest buffer
	fill  time.Duration // how long the buffer before the filling one took; zero: not known
	begun time.Time     // when the filling one got its first byte
	fresh bool          // the next buffer is of the smallest size, as at the beginning

	arrived  uint64 // bytes
	consumed uint64 // of these, bytes that Consume has taken
	marked   uint64 // arrived at the last call of Mark
}

// NewInbound returns the first buffer of a connection, which the peer learns of when it connects.
func (m *Memory) NewInbound(b Base) Inbound {
	in := Inbound{memory: m, first: b.FirstBuffer()}
	in.whole = in.first.data
	in.add(in.first)
	return in
}

func (in *Inbound) add(b *Buffer) {
	in.buffers = append(in.buffers, b)
	in.size += len(b.data)
	in.last = len(b.data)
}

// Available is the number of bytes that Unread returns. If it is zero, all has been read.
func (in *Inbound) Available() int {
	if len(in.buffers) == 0 {
		return 0
	}
	return in.buffers[0].filled - in.buffers[0].read
}

// Unread is what has arrived in the oldest buffer and was not read.
func (in *Inbound) Unread() []byte {
	b := in.buffers[0]
	return b.data[b.read:b.filled]
}

// Consume notes that n bytes have been read, and reports whether the buffer has become free.
func (in *Inbound) Consume(n int) bool {
	in.consumed += uint64(n)
	b := in.buffers[0]
	if b.read += n; b.read < len(b.data) {
		return false
	}
	in.size -= len(b.data)
	if b != in.first {
		in.used = append(in.used, b)
	}
	in.buffers = append(in.buffers[:0], in.buffers[1:]...)
	if b.ends {
		in.releaseUsed()
	}
	return true
}

// Consumed is the number of bytes that Consume has taken, and of those that it has not.
func (in *Inbound) Consumed() (consumed, unread uint64) { return in.consumed, in.arrived - in.consumed }

// Mark begins the time that Idle reports on.
func (in *Inbound) Mark() { in.marked = in.arrived }

// Idle reports whether nothing has arrived since Mark.
func (in *Inbound) Idle() bool { return in.marked == in.arrived }

// Grown reports whether there are buffers beside the first one.
func (in *Inbound) Grown() bool {
	return len(in.used) > 0 || slices.ContainsFunc(in.buffers, func(b *Buffer) bool { return b != in.first && !b.ends })
}

// Withdrawn releases what has not been filled, now that the peer writes no more to the buffers that
// it was told of. Data that has not been read stays.
func (in *Inbound) Withdrawn() {
	kept := in.buffers[:0]
	for _, b := range in.buffers {
		in.size -= len(b.data) - b.filled
		switch b.data = b.data[:b.filled]; {
		case b.read < b.filled:
			b.ends = true
			kept = append(kept, b)
		default:
			in.size -= b.filled
			if b != in.first {
				in.used = append(in.used, b)
			}
		}
	}
	clear(in.buffers[len(kept):])
	in.buffers, in.fresh = kept, true
	in.releaseUsed()
}

// releaseUsed releases the buffers that were kept to be used again. Those that cannot be released stay.
func (in *Inbound) releaseUsed() { in.reuse(-1, 0) }

// filling is the buffer that the next byte arrives in, and those behind it.
func (in *Inbound) filling() []*Buffer {
	for i, b := range in.buffers {
		if !b.full() {
			return in.buffers[i:]
		}
	}
	return nil
}

// Room is the number of bytes left in the buffer that the next byte arrives in.
func (in *Inbound) Room() int {
	list := in.filling()
	if len(list) == 0 {
		return 0
	}
	return len(list[0].data) - list[0].filled
}

// Fill notes that n bytes have arrived, for which there was Room. now is called when a buffer gets
// its first byte.
func (in *Inbound) Fill(n int, now func() time.Time) {
	if n == 0 {
		return
	}
	in.arrived += uint64(n)
	b := in.filling()[0]
	if b.filled == 0 {
		begun := now()
		if !in.begun.IsZero() {
			in.fill = max(begun.Sub(in.begun), 1)
		}
		in.begun = begun
	}
	b.filled += n
}

// Next returns a buffer for the peer to be told of, if one is due: when the peer has filled half of
// the last one, and limit has room for one more. Until then the peer need not wait, and a connection
// with little data costs neither memory nor a message. If the memory of all connections is used up,
// that is the first buffer again, as soon as the program has read it.
func (in *Inbound) Next(limit int) *Buffer {
	if list := in.filling(); len(list) > 1 || len(list) == 1 && list[0].filled < len(list[0].data)/2 {
		return nil
	}
	size := max(in.last, Smallest)
	switch {
	case in.fresh:
		size = Smallest
	case in.fill < fastFill:
		size *= 2
	case in.fill > slowFill:
		size /= 2
	}
	if size = max(min(size, limit/perLimit), Smallest); in.size+size > limit {
		return nil // until the program has read
	}
	b := in.reuse(size, limit-in.size-size)
	firstIsFree := !slices.Contains(in.buffers, in.first)
	if b == nil && (size > Smallest || !firstIsFree) {
		var err error
		if b, err = in.memory.buffer(size); err != nil {
			in.failed(fmt.Errorf("allocate a receive buffer: %w", err))
		}
	}
	if b == nil {
		if !firstIsFree {
			return nil
		}
		b = in.first
		b.data, b.ends = in.whole, false
	}
	b.filled, b.read = 0, 0
	if in.fresh {
		in.fresh, in.fill, in.begun = false, 0, time.Time{}
	}
	in.add(b)
	return b
}

// reuse returns a used buffer of a size, or nil. It keeps others of this size, spare bytes at most,
// and releases the rest.
func (in *Inbound) reuse(size, spare int) (found *Buffer) {
	kept := in.used[:0]
	for _, b := range in.used {
		switch {
		case found == nil && len(b.data) == size:
			found = b
		case len(b.data) == size && spare >= size:
			spare -= size
			kept = append(kept, b)
		default:
			if err := in.memory.closeBuffer(b); err != nil {
				in.failed(err)
				kept = append(kept, b) // to try again
			}
		}
	}
	clear(in.used[len(kept):])
	in.used = kept
	return found
}

// failed notes an error for Release. The connection works on.
func (in *Inbound) failed(err error) { in.failure = cmp.Or(in.failure, err) }

// Release releases all buffers but the first. It returns the first error, if there was one at all.
func (in *Inbound) Release() error {
	for _, b := range append(in.buffers, in.used...) {
		if b != in.first {
			if err := in.memory.closeBuffer(b); err != nil {
				in.failed(err)
			}
		}
	}
	in.buffers, in.used = nil, nil
	return in.failure
}
