package transport

// Ring is a first-in first-out queue of bounded length. Its memory grows with
// what it holds, so that a queue that is hardly used takes little.
type Ring[T any] struct {
	items []T    // as many as a power of two, or none
	head  uint64 // number of the oldest item
	tail  uint64 // number of the next item
	depth int    // the most items that it holds
}

// ringStart is how many items the first memory is for.
const ringStart = 2

// NewRing returns a queue for at most depth items.
func NewRing[T any](depth int) Ring[T] { return Ring[T]{depth: depth} }

// Depth is the most items that the queue holds.
func (r *Ring[T]) Depth() int { return r.depth }

// Resize changes the most items that the queue holds. It must not hold more.
func (r *Ring[T]) Resize(depth int) { r.depth = depth }

// Len is the number of items.
func (r *Ring[T]) Len() int { return int(r.tail - r.head) }

// Full reports whether no further item can be pushed.
func (r *Ring[T]) Full() bool { return r.Len() >= r.depth }

// Push appends an item and returns it, to be filled in: it holds what was there
// when its place was used last. It returns nil if the queue is full.
func (r *Ring[T]) Push() *T {
	if r.Full() {
		return nil
	}
	r.reserve()
	r.tail++
	return r.at(r.tail - 1)
}

// reserve makes sure that there is memory for the item at tail.
func (r *Ring[T]) reserve() {
	if r.tail-r.head == uint64(len(r.items)) {
		r.grow()
	}
}

// Pop takes the oldest item and returns it; it is valid until the next Push. The
// queue must not be empty.
func (r *Ring[T]) Pop() *T {
	r.head++
	return r.at(r.head - 1)
}

// at returns the item with that number.
func (r *Ring[T]) at(i uint64) *T { return &r.items[i&uint64(len(r.items)-1)] }

// grow makes room for another item in a queue that uses all its memory.
//
//go:noinline so that reserve, which rarely calls it, is inlined
func (r *Ring[T]) grow() {
	n := max(2*len(r.items), 1)
	for n < min(ringStart, r.depth) {
		n *= 2
	}
	items := make([]T, n)
	for i := r.head; i != r.tail; i++ {
		items[i&uint64(n-1)] = *r.at(i)
	}
	r.items = items
}

// empty forgets all items.
func (r *Ring[T]) empty() { r.head, r.tail = 0, 0 }

// last returns the newest item. The queue must not be empty.
func (r *Ring[T]) last() *T { return r.at(r.tail - 1) }

// First returns the oldest item. The queue must not be empty.
func (r *Ring[T]) First() *T { return r.at(r.head) }
