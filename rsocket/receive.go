package rsocket

import (
	"errors"
	"time"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/rsocket/internal/wire"
)

const (
	// Each connection has one page pair of memory from its beginning to its end: the target SGL,
	// which the peer writes to, entries on their way to the peer's, and the first receive buffer.
	baseSize    = 8 << 10
	sglOffset   = 0
	entryOffset = sglOffset + wire.Entries*wire.EntrySize
	firstOffset = entryOffset + wire.Entries*wire.EntrySize

	// A buffer that was filled faster than fastFill is followed by one twice as large, and one
	// that took longer than slowFill by one half as large.
	fastFill = 200 * time.Millisecond
	slowFill = 5 * time.Second
	// buffersPerConn is how many of the largest buffers ReceiveBuffer has room for: while the
	// peer fills two, the program reads the others.
	buffersPerConn = 4
)

// buffer is a receive buffer: memory that the peer fills from the beginning to the end.
type buffer struct {
	memory *mmap.Map // nil: part of the base memory
	data   []byte
	entry  wire.Entry
	filled int
	read   int
	begun  time.Time // when the first byte arrived
}

func (b *buffer) full() bool { return b.filled == len(b.data) }

func (b *buffer) close() error {
	if b.memory == nil {
		return nil
	}
	return b.memory.Close()
}

// inbound is what has arrived. The lock of the connection guards it.
type inbound struct {
	buffers []*buffer // that the peer has been told of and the program has not read, in order
	used    []*buffer // read, to be used again
	size    int       // bytes of buffers
}

// add adds a buffer that the peer is told of.
func (in *inbound) add(b *buffer) {
	in.buffers = append(in.buffers, b)
	in.size += len(b.data)
}

// available is the number of bytes in the first buffer that have not been read. If there is none,
// nothing else has arrived.
func (in *inbound) available() int {
	if len(in.buffers) == 0 {
		return 0
	}
	return in.buffers[0].filled - in.buffers[0].read
}

// unread is the data that available counts.
func (in *inbound) unread() []byte {
	b := in.buffers[0]
	return b.data[b.read:b.filled]
}

// consume notes that n bytes have been read, and reports whether the buffer has become free.
func (in *inbound) consume(n int) bool {
	b := in.buffers[0]
	if b.read += n; b.read < len(b.data) {
		return false
	}
	in.size -= len(b.data)
	in.used = append(in.used, b)
	in.buffers = append(in.buffers[:0], in.buffers[1:]...)
	return true
}

// filling is the buffer that the next byte arrives in, and those behind it.
func (in *inbound) filling() []*buffer {
	for i, b := range in.buffers {
		if !b.full() {
			return in.buffers[i:]
		}
	}
	return nil
}

func (in *inbound) free() error {
	var list []error
	for _, b := range append(in.buffers, in.used...) {
		list = append(list, b.close())
	}
	in.buffers, in.used = nil, nil
	return errors.Join(list...)
}

// sizes decides how large the next buffer is.
type sizes struct {
	last   int           // of the newest buffer
	fill   time.Duration // how long the last full buffer took; zero: none is known
	newest time.Time     // when the newest buffer that has data began to fill
}

// began notes that a buffer begins to fill, and so that the one before is full.
func (s *sizes) began(b *buffer, now time.Time) {
	b.begun = now
	if !s.newest.IsZero() {
		s.fill = max(now.Sub(s.newest), 1)
	}
	s.newest = now
}

// next is the size of the next buffer, from baseSize to largest.
func (s *sizes) next(largest int) int {
	size := max(s.last, baseSize)
	switch {
	case s.fill < fastFill:
		size *= 2
	case s.fill > slowFill:
		size /= 2
	}
	return max(min(size, largest), baseSize)
}
