package bufinv

import (
	"fmt"

	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/mmap"
)

// Inventory is a stock of Bufs for any memory. The zero value is ready for use and grows: it
// makes more Bufs when none is free, up to 2^24, and reuses them. It allocates nothing once it
// has as many as the program uses at a time. New makes one that does not grow.
type Inventory struct{ s store }

// New makes an Inventory of n Bufs, 1 to 2^24, that does not grow: Source, Target and Dup fail
// with ErrExhausted when all are in use. The error matches ErrRange.
func New(n int) (*Inventory, error) {
	if n < 1 || n > maxBufs {
		return nil, fmt.Errorf("make buffer inventory: %w: %d buffers; give 1 to %d", ErrRange, n, maxBufs)
	}
	i := &Inventory{s: store{bounded: true}}
	i.s.grow(make([]Buf, n))
	return i, nil
}

// Expand makes n more Bufs now. It raises the bound of an Inventory from New by n; one that
// grows need not make them later. Errors match ErrRange (Total would exceed 2^24) and
// ErrClosed.
func (i *Inventory) Expand(n int) error {
	i.s.mu.Lock()
	defer i.s.mu.Unlock()
	if i.s.closed {
		return fmt.Errorf("expand buffer inventory: it is %w", ErrClosed)
	}
	if n < 1 || n > maxBufs-i.s.total {
		return fmt.Errorf("expand buffer inventory: %w: %d more buffers; give 1 to %d", ErrRange, n, maxBufs-i.s.total)
	}
	i.s.grow(make([]Buf, n))
	return nil
}

// Total is the number of Bufs made so far, free and in use.
func (i *Inventory) Total() int {
	_, total := i.s.count()
	return total
}

// Available is the number of free Bufs: Total less those in use. Where the Inventory grows,
// more can be had.
func (i *Inventory) Available() int {
	free, _ := i.s.count()
	return free
}

// Close ends the inventory. It fails with ErrInUse while Bufs are in use, which shows those
// that were forgotten. An Inventory whose Bufs are all free needs no Close. Closing again does
// nothing.
func (i *Inventory) Close() error {
	_, err := i.s.close("buffer inventory")
	return err
}

// Source makes a Buf of n bytes of m from offset off, all of them data, for a task to read.
// mmap.Map.Find has the offset of a slice of the memory.
// Its errors, which are in the Buf, match ErrExhausted, ErrRange (a source with no data
// included), ErrInvalid, ErrClosed and those of mmap.
func (i *Inventory) Source(m *mmap.Map, off, n int) *Buf {
	b := i.take(m, off, n)
	if b.err == nil {
		b.dataLen = n
	}
	return b
}

// Target makes a Buf of n bytes of m from offset off, with no data, for a task to write to,
// here or at a peer. Its errors are those of Source.
func (i *Inventory) Target(m *mmap.Map, off, n int) *Buf { return i.take(m, off, n) }

// Dup makes another Buf of the memory of b, with the same data, in no list. It takes nothing
// from b. Keep b as long as the duplicate is in use if b is from a Pool, which can otherwise
// hand out its memory again.
func (i *Inventory) Dup(b *Buf) *Buf {
	if err := b.unusableErr(); err != nil {
		return errorBuf(fmt.Errorf("duplicate buffer: %w", err))
	}
	d := i.take(b.m, b.off, b.size)
	if d.err == nil {
		d.dataOff, d.dataLen = b.dataOff, b.dataLen
	}
	return d
}

func (i *Inventory) take(m *mmap.Map, off, n int) *Buf {
	switch {
	case m == nil:
		return errorBuf(fmt.Errorf("take buffer: %w: no memory map is given", ErrInvalid))
	case n < 1:
		return errorBuf(fmt.Errorf("take buffer: %w: the length is %d bytes; give at least 1", ErrRange, n))
	case off < 0 || off > m.Len() || n > m.Len()-off:
		return errorBuf(fmt.Errorf("take buffer: %w: %d bytes from offset %d, in a memory map of %d", ErrRange, n, off, m.Len()))
	}
	if err := m.Friends(friend.Package{}).Hold(); err != nil {
		return errorBuf(fmt.Errorf("take buffer: %w", err))
	}
	b := i.s.take()
	if b.err != nil {
		_ = m.Friends(friend.Package{}).Release() // held just now
		return b
	}
	b.m, b.off, b.size = m, off, n
	b.dataOff, b.dataLen = 0, 0
	b.version++
	b.refs.Store(1)
	return b
}
