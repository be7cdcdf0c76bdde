package dma

import (
	"cmp"
	"fmt"
	"slices"
	"unsafe"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/mmap"
)

// span is memory that a copy reads or writes: one element of a list.
type span struct {
	space    uintptr // spans of different spaces do not overlap
	from, to uint64  // addresses; to is the one after the last
	writes   bool
	element  int // index in its list
}

func (s *span) String() string {
	side := "source"
	if s.writes {
		side = "destination"
	}
	return fmt.Sprintf("element %d of the %s (%d bytes at %#x)", s.element, side, s.to-s.from, s.from)
}

// check returns the number of bytes that a copy moves, or what is wrong with its buffers. The
// destination counts as empty, unless the copy appends to it.
func (c *Context) check(src, dst *bufinv.Buf, appends bool) (int, error) {
	switch {
	case src == nil || dst == nil:
		return 0, fmt.Errorf("%w: a copy needs a source and a destination", ErrInvalid)
	case src.Err() != nil:
		return 0, fmt.Errorf("the source: %w", src.Err())
	case dst.Err() != nil:
		return 0, fmt.Errorf("the destination: %w", dst.Err())
	}
	n, room, advice := src.ListDataLen(), dst.Friends(friend.Package{}).ListEmptiedRoom(), "use a larger one"
	if appends {
		room, advice = dst.ListRoom(), "call SetAppend(false), or empty it"
	}
	switch {
	case n == 0:
		return 0, fmt.Errorf("%w; make it with Source", ErrNoData)
	case n > room:
		return 0, fmt.Errorf("%w: the source has %d bytes, the destination has room for %d; %s", ErrRange, n, room, advice)
	}
	c.spans = c.spans[:0]
	i := 0
	for b := src; b != nil; b = b.Next() {
		if b.DataLen() > 0 {
			if err := c.reachable(b, "source"); err != nil {
				return 0, err
			}
			c.spans = append(c.spans, span{spaceOf(b), b.DataAddr(), b.TailAddr(), false, i})
		}
		i++
	}
	i = 0
	for b, left := dst, n; left > 0 && b != nil; b = b.Next() {
		at, room := b.TailAddr(), b.Room()
		if !appends {
			at, room = b.DataAddr(), b.DataLen()+b.Room()
		}
		if part := min(left, room); part > 0 {
			if err := c.writable(b); err != nil {
				return 0, err
			}
			c.spans = append(c.spans, span{spaceOf(b), at, at + uint64(part), true, i})
			left -= part
		}
		i++
	}
	return n, c.checkOverlap()
}

// checkNew checks the buffers of a new task, on which SetAppend may still be called.
func (c *Context) checkNew(src, dst *bufinv.Buf) error {
	_, err := c.check(src, dst, false)
	if err != nil {
		if _, appending := c.check(src, dst, true); appending == nil {
			return nil
		}
	}
	return err
}

// reachable checks that the context's device can use the memory of a buffer.
func (c *Context) reachable(b *bufinv.Buf, side string) error {
	if b.Remote() {
		return fmt.Errorf("%w: the %s is memory of a peer; read or write it with package rdma", ErrInvalid, side)
	}
	if _, err := b.Map().LKey(c.set.PD); err != nil {
		return fmt.Errorf("the %s, on %s: %w", side, c.dev.Name(), err)
	}
	return nil
}

func (c *Context) writable(b *bufinv.Buf) error {
	if err := c.reachable(b, "destination"); err != nil {
		return err
	}
	if have := b.Map().Permissions(); !have.Has(mmap.LocalReadWrite) {
		return fmt.Errorf("the destination: %w: its memory map has %v; make it with LocalReadWrite", mmap.ErrPermission, have)
	}
	return nil
}

// spaceOf identifies the address space of a buffer: addresses of different spaces are not
// compared. Those of a dma-buf are offsets within its map.
func spaceOf(b *bufinv.Buf) uintptr {
	if b.Memory() == nil {
		return uintptr(unsafe.Pointer(b.Map()))
	}
	return 0
}

// compareSpans orders spans by address.
func compareSpans(a, b span) int {
	return cmp.Or(cmp.Compare(a.space, b.space), cmp.Compare(a.from, b.from))
}

// checkOverlap refuses memory that a copy both writes and reads, or writes twice. It goes
// through the spans by address, and keeps the span read and the span written that reach furthest.
func (c *Context) checkOverlap() error {
	slices.SortFunc(c.spans, compareSpans)
	var read, written *span
	for i := range c.spans {
		s := &c.spans[i]
		if i > 0 && s.space != c.spans[i-1].space {
			read, written = nil, nil
		}
		switch {
		case written != nil && written.to > s.from:
			return overlap(written, s)
		case s.writes && read != nil && read.to > s.from:
			return overlap(read, s)
		case s.writes:
			written = further(written, s)
		default:
			read = further(read, s)
		}
	}
	return nil
}

func further(a, b *span) *span {
	if a != nil && a.to > b.to {
		return a
	}
	return b
}

func overlap(a, b *span) error {
	return fmt.Errorf("%w: %v and %v; copy through other memory", ErrOverlap, a, b)
}
