package bufinv

import (
	"fmt"
	"sync"
)

// maxBufs is the most elements that an inventory or a pool can have.
const maxBufs = 1 << 24

// store is a set of Bufs of which some are out. The free ones form a queue, so
// that the one used last is handed out last: that gives the use of a freed Buf
// the longest time to be noticed.
type store struct {
	mu     sync.Mutex
	head   *Buf // the next to go out; linked through Buf.next
	tail   *Buf
	free   int
	total  int
	closed bool

	exhausted *Buf // what take returns when nothing is free
	gone      *Buf // what take returns after close
	// holdMap makes each Buf that is out hold its Map.
	holdMap bool
}

func (s *store) init(what string, holdMap bool) {
	s.holdMap = holdMap
	s.exhausted = &Buf{err: fmt.Errorf("take buffer: %s is %w; free some or make it bigger", what, ErrExhausted)}
	s.gone = &Buf{err: fmt.Errorf("take buffer: %s is %w", what, ErrClosed)}
}

// grow adds n elements, set up by the caller. The caller holds mu or is the only
// one to know of s.
func (s *store) grow(bufs []Buf) {
	for i := range bufs {
		bufs[i].owner = s
		s.push(&bufs[i])
	}
	s.total += len(bufs)
}

func (s *store) push(b *Buf) {
	if s.tail == nil {
		s.head = b
	} else {
		s.tail.next = b
	}
	s.tail = b
	s.free++
}

// take hands out an element with no reference yet, or a Buf with an error.
func (s *store) take() *Buf {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.head
	switch {
	case s.closed:
		return s.gone
	case b == nil:
		return s.exhausted
	}
	s.head, b.next = b.next, nil
	if s.head == nil {
		s.tail = nil
	}
	s.free--
	return b
}

// put takes an element back, which nobody refers to any more.
func (s *store) put(b *Buf) {
	if s.holdMap {
		// Held since the Buf went out: Release cannot fail.
		_ = b.m.Release()
		b.m = nil
	}
	s.mu.Lock()
	s.push(b)
	s.mu.Unlock()
}

func (s *store) count() (free, total int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.free, s.total
}

// close reports whether it was this call that closed the store.
func (s *store) close(what string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false, nil
	}
	if out := s.total - s.free; out > 0 {
		return false, fmt.Errorf("close %s: %w: %d of %d are out; free them and the tasks that have them", what, ErrInUse, out, s.total)
	}
	s.closed = true
	return true, nil
}
