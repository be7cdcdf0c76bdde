package cm

// queue is first in, first out, and keeps its memory. The zero value is empty.
type queue[T any] struct {
	items []T
	head  int
}

func (q *queue[T]) len() int { return len(q.items) - q.head }

// waiting is what is in the queue, valid until the next push.
func (q *queue[T]) waiting() []T { return q.items[q.head:] }

// push makes room for one more and returns it, with whatever it held before.
func (q *queue[T]) push() *T {
	if q.head > 0 && len(q.items) == cap(q.items) {
		n := copy(q.items, q.items[q.head:])
		q.items, q.head = q.items[:n], 0
	}
	if len(q.items) < cap(q.items) {
		q.items = q.items[:len(q.items)+1]
	} else {
		var blank T
		q.items = append(q.items, blank)
	}
	return &q.items[len(q.items)-1]
}

// keptItems is how many items an empty queue has memory for.
const keptItems = 256

// pop returns the first item, which stays valid until the next push.
func (q *queue[T]) pop() *T {
	item := &q.items[q.head]
	q.head++
	if q.head == len(q.items) {
		if q.items, q.head = q.items[:0], 0; cap(q.items) > keptItems {
			q.items = nil
		}
	}
	return item
}
