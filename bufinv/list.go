package bufinv

import (
	"fmt"
	"math"
	"slices"

	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/verbs"
)

// Chain appends the list that begins with next to the list that b is in, and takes over the
// caller's reference to next. It fails with ErrChained, and changes nothing, if next is not
// the first element of its list, or is the first element of the list that b is in.
func (b *Buf) Chain(next *Buf) error {
	if err := b.unusableErr(); err != nil {
		return fmt.Errorf("chain to buffer: %w", err)
	}
	if err := next.unusableErr(); err != nil {
		return fmt.Errorf("chain buffer: %w", err)
	}
	if next.prev != nil {
		return fmt.Errorf("chain buffer: %w; Unchain it first", ErrChained)
	}
	if b.First() == next {
		return fmt.Errorf("chain buffer: it is already the first element of this list: %w", ErrChained)
	}
	last := b.Last()
	last.next, next.prev = next, last
	return nil
}

// Unchain cuts the list in front of b: b becomes the first element of its own list, with all
// elements after it, and its reference is the caller's again. It fails with ErrInvalid if b is
// the first element already.
func (b *Buf) Unchain() error {
	if err := b.unusableErr(); err != nil {
		return fmt.Errorf("unchain buffer: %w", err)
	}
	if b.prev == nil {
		return fmt.Errorf("unchain buffer: %w: it is the first of its list", ErrInvalid)
	}
	b.prev.next, b.prev = nil, nil
	return nil
}

// List chains lists to one, in order, and returns its first element. It skips nil Bufs. If one
// has an error or cannot be chained, List frees all of them and returns a Buf with that error,
// so it can be written inline, like Source.
func List(bufs ...*Buf) *Buf {
	var first *Buf
	for i, b := range bufs {
		err := b.Err()
		switch {
		case b == nil:
			continue
		case err == nil && first == nil:
			first = b
			continue
		case err == nil:
			err = first.Chain(b)
		}
		if err != nil {
			for j := i; j < len(bufs); j++ {
				if !slices.Contains(bufs[:j], bufs[j]) {
					_ = bufs[j].Free()
				}
			}
			_ = first.Free()
			return errorBuf(fmt.Errorf("chain buffers: %w", err))
		}
	}
	return first
}

// Next is the next element of the list, or nil.
func (b *Buf) Next() *Buf {
	if !b.usable() {
		return nil
	}
	return b.next
}

// First is the first element of the list that b is in: b itself if it is alone.
func (b *Buf) First() *Buf {
	if !b.usable() {
		return b
	}
	for b.prev != nil {
		b = b.prev
	}
	return b
}

// Last is the last element of the list that b is in.
func (b *Buf) Last() *Buf {
	if !b.usable() {
		return b
	}
	for b.next != nil {
		b = b.next
	}
	return b
}

// ListLen is the number of elements from b to the end of its list.
func (b *Buf) ListLen() int {
	n := 0
	for e := b.elements(); e != nil; e = e.next {
		n++
	}
	return n
}

// addSizes stops at the largest int: a list may name the same memory many times.
func addSizes(a, b int) int {
	if a > math.MaxInt-b {
		return math.MaxInt
	}
	return a + b
}

// ListDataLen is the number of bytes of data from b to the end of its list.
func (b *Buf) ListDataLen() int {
	n := 0
	for e := b.elements(); e != nil; e = e.next {
		n = addSizes(n, e.dataLen)
	}
	return n
}

// ListRoom is the number of bytes of room from b to the end of its list.
func (b *Buf) ListRoom() int {
	n := 0
	for e := b.elements(); e != nil; e = e.next {
		n = addSizes(n, e.room())
	}
	return n
}

// AppendBytes appends the data from b to the end of its list to dst. It skips elements in
// memory of a peer or of a dma-buf.
func (b *Buf) AppendBytes(dst []byte) []byte {
	for e := b.elements(); e != nil; e = e.next {
		dst = append(dst, e.Bytes()...)
	}
	return dst
}

// elements returns the start of a walk: b, or nil where b cannot be used.
func (b *Buf) elements() *Buf {
	if !b.usable() {
		return nil
	}
	return b
}

// Keep keeps the memory of all buffers of a list from being reused (mmap.Map.Keep). It is for
// packages of contexts.
func (s forFriends) Keep(dev verbs.Device, reason error) {
	b := s.Buf
	for ; b != nil; b = b.Next() {
		if m := b.Map(); m != nil {
			m.Friends(friend.Package{}).Keep(dev, reason)
		}
	}
}
