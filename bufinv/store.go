package bufinv

import (
	"fmt"
	"sync"

	"github.com/verbena-rdma/verbena/internal/friend"
)

// maxBufs is the largest number of elements of an inventory or a pool.
const maxBufs = 1 << 24

// initialBufs is the number of elements with which a growing store begins.
const (
	initialBufs    = 64
	initialMapBufs = 4 // a program may have many maps
)

// store is a set of Bufs, some of them in use. The free ones form a queue, so that the Buf
// freed last is handed out last: that gives the use of a freed Buf the longest time to be
// noticed. The zero value is that of an Inventory that grows.
type store struct {
	// bounded: take fails when nothing is free, and does not grow the store.
	bounded bool
	// pool: the elements keep their memory, and do not hold its Map.
	pool bool
	// mapInventory: the store belongs to one Map.
	mapInventory bool

	mu     sync.Mutex
	head   *Buf // the next to go out; linked through Buf.next
	tail   *Buf
	free   int
	total  int
	closed bool
}

// storeErrors are the Bufs that take returns instead of an element.
func (s *store) errors() *storeErrors {
	if s.pool {
		return &poolErrors
	}
	return &inventoryErrors
}

// grow adds n elements, set up by the caller. The caller holds mu, or s is not shared yet.
func (s *store) grow(bufs []Buf) {
	for i := range bufs {
		bufs[i].owner = s
		s.push(&bufs[i])
	}
	s.total += len(bufs)
}

// room reports whether an element is free, and grows the store if none is and it may. Growing
// doubles the store, so that a steady program soon allocates nothing. The caller holds mu.
func (s *store) room() bool {
	if s.head == nil && !s.bounded && s.total < maxBufs {
		first := initialBufs
		if s.mapInventory {
			first = initialMapBufs
		}
		s.grow(make([]Buf, min(max(s.total, first), maxBufs-s.total)))
	}
	return s.head != nil
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

// take hands out an element, which has no reference yet, or a Buf with an error.
func (s *store) take() *Buf {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return s.errors().closed
	}
	if !s.room() {
		return s.errors().exhausted
	}
	b := s.head
	s.head, b.next = b.next, nil
	if s.head == nil {
		s.tail = nil
	}
	s.free--
	return b
}

// put takes back an element that has no reference left.
func (s *store) put(b *Buf) {
	if !s.pool {
		// The Map has been held since take: Release cannot fail.
		_ = b.m.Friends(friend.Package{}).Release()
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

// close reports whether this call closed the store.
func (s *store) close(what string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false, nil
	}
	if out := s.total - s.free; out > 0 {
		return false, fmt.Errorf("close %s: %w: %d of %d buffers are not freed; free them, or the tasks that hold them", what, ErrInUse, out, s.total)
	}
	s.closed = true
	return true, nil
}
