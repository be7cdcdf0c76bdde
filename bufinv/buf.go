package bufinv

import (
	"fmt"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/mmap"
)

// Buf is a piece of the memory of a Map, with data in it. It can be an element of a list. The
// package comment explains its parts and its references.
type Buf struct {
	owner   *store
	m       *mmap.Map
	off     int // offset of the memory in m
	size    int
	dataOff int // offset of the data in the memory
	dataLen int
	next    *Buf
	prev    *Buf
	refs    atomic.Int64
	version uint64 // see forFriends.Version
	err     error
}

func errorBuf(err error) *Buf { return &Buf{err: err} }

// usable reports whether b can be used. Only an inventory makes references, so a Buf that could
// not be made has none. It is small enough to be inlined: the allocation of a task calls it
// often.
func (b *Buf) usable() bool { return b != nil && b.refs.Load() > 0 }

// none stands for a Buf that cannot be used: its address and all its sizes are zero.
var none = &Buf{m: new(mmap.Map)}

func (b *Buf) orNone() *Buf {
	if b.usable() {
		return b
	}
	return none
}

// at is the address of the byte at an offset of the memory.
func (b *Buf) at(off int) uint64 { return b.m.Addr() + uint64(b.off+off) }

// unusableErr is Err for calls that require a buffer.
func (b *Buf) unusableErr() error {
	switch {
	case b.usable():
		return nil
	case b == nil:
		return errNoBuf
	case b.err != nil:
		return b.err
	}
	return errUseFreed
}

// Err returns the error of the Buf: why it could not be made, or ErrFreed. A nil Buf, the
// empty list, has no error.
func (b *Buf) Err() error {
	if b == nil || b.usable() {
		return nil
	}
	return b.unusableErr()
}

// String gives the place of the Buf, and the size of its data.
func (b *Buf) String() string {
	switch {
	case b == nil:
		return "no buffer"
	case !b.usable():
		return fmt.Sprintf("unusable buffer: %v", b.unusableErr())
	}
	s := fmt.Sprintf("buffer of %d bytes from %#x with %d bytes of data", b.size, b.Addr(), b.dataLen)
	if n := b.ListLen(); n > 1 {
		s += fmt.Sprintf(", first of a list of %d", n)
	}
	return s
}

// Map is the memory map that the Buf lies in, or nil.
func (b *Buf) Map() *mmap.Map {
	if !b.usable() {
		return nil
	}
	return b.m
}

// Remote reports whether the memory is a peer's.
func (b *Buf) Remote() bool { return b.usable() && b.m.Remote() }

// Addr is the address of the memory. For a Buf with an error, Addr and all sizes are zero.
func (b *Buf) Addr() uint64 { return b.orNone().at(0) }

// Len is the number of bytes of the memory.
func (b *Buf) Len() int { return b.orNone().size }

// DataAddr is the address of the data.
func (b *Buf) DataAddr() uint64 {
	b = b.orNone()
	return b.at(b.dataOff)
}

// DataLen is the number of bytes of data.
func (b *Buf) DataLen() int { return b.orNone().dataLen }

// TailAddr is the address behind the data, where the room begins.
func (b *Buf) TailAddr() uint64 {
	b = b.orNone()
	return b.at(b.dataOff + b.dataLen)
}

// Room is the number of bytes of memory behind the data.
func (b *Buf) Room() int { return b.orNone().room() }

func (b *Buf) room() int { return b.size - b.dataOff - b.dataLen }

// SetData makes n bytes from offset off of the memory the data. n may be zero, but a task
// refuses a source without data. A range outside the memory is an error that matches ErrRange
// and changes nothing.
func (b *Buf) SetData(off, n int) error {
	if err := b.unusableErr(); err != nil {
		return fmt.Errorf("set data: %w", err)
	}
	if off < 0 || n < 0 || off > b.size || n > b.size-off {
		return fmt.Errorf("set data: %w: %d bytes from offset %d, in a buffer of %d", ErrRange, n, off, b.size)
	}
	b.dataOff, b.dataLen = off, n
	b.version++
	return nil
}

// ResetData empties the Buf: all of its memory becomes room.
func (b *Buf) ResetData() error { return b.SetData(0, 0) }

// Empty makes the data of all elements from b to the end of its list room. Unlike ResetData,
// it keeps the place where the data begins, so bytes in front of it stay in front.
func (b *Buf) Empty() error {
	if err := b.Err(); err != nil {
		return fmt.Errorf("empty buffer: %w", err)
	}
	for e := b; e != nil; e = e.next {
		e.dataLen = 0
		e.version++
	}
	return nil
}

// Bytes returns the data of this element, or nil if the memory is a peer's or a dma-buf's. The
// slice is the memory itself: do not use it after the Map is closed.
func (b *Buf) Bytes() []byte {
	mem := b.Memory()
	if mem == nil {
		return nil
	}
	end := b.dataOff + b.dataLen
	return mem[b.dataOff:end:end]
}

// Memory is Bytes for all of the memory, not only the data.
func (b *Buf) Memory() []byte {
	if !b.usable() {
		return nil
	}
	mem := b.m.Bytes()
	if mem == nil {
		return nil
	}
	return mem[b.off : b.off+b.size : b.off+b.size]
}

// Ref adds a reference, for one more owner. It fails on a Buf with an error.
func (b *Buf) Ref() error {
	if b == nil {
		return errNoBuf
	}
	for {
		if err := b.Err(); err != nil {
			return err
		}
		// A count of zero stays: the Buf may have been freed meanwhile.
		if n := b.refs.Load(); n > 0 && b.refs.CompareAndSwap(n, n+1) {
			return nil
		}
	}
}

// Free drops a reference. When the last one is dropped, the Buf returns to its inventory, and
// drops one reference of the next element of its list in the same way.
//
// It fails with ErrFreed if no reference was left, and with ErrChained on an element whose
// last reference is that of the element before it. It does nothing on a nil Buf, and on one
// that could not be made.
func (b *Buf) Free() error {
	if b == nil || b.err != nil {
		return nil
	}
	for {
		n := b.refs.Load()
		switch {
		case n <= 0:
			return errFreeFreed
		case n == 1 && b.prev != nil:
			return errFreeInner
		}
		if b.refs.CompareAndSwap(n, n-1) {
			if n == 1 {
				b.giveBack()
			}
			return nil
		}
	}
}

// giveBack returns b, which has no reference left, and the elements after it up to one with
// another reference, which becomes the first of the rest.
func (b *Buf) giveBack() {
	for {
		next := b.next
		b.next = nil
		b.owner.put(b)
		if next == nil {
			return
		}
		next.prev = nil
		if next.refs.Add(-1) > 0 {
			return
		}
		b = next
	}
}
