// Package fifo has two first-in first-out queues. Queue keeps values in memory of its own.
// List links nodes that its elements embed, so it never allocates, and any element can be
// removed. Neither is safe for concurrent use.
package fifo

import "iter"

// Queue is a first-in first-out queue of values. It grows as needed and keeps its
// memory; in a steady state it allocates nothing. The zero value is empty.
type Queue[T any] struct {
	ring []T // its length is zero or a power of two
	head int
	n    int
}

// Len is the number of values in the queue.
func (q *Queue[T]) Len() int { return q.n }

// Push adds a value at the end.
func (q *Queue[T]) Push(v T) {
	if q.n == len(q.ring) {
		q.grow()
	}
	q.ring[(q.head+q.n)&(len(q.ring)-1)] = v
	q.n++
}

// Pop takes the first value out. It panics if the queue is empty.
func (q *Queue[T]) Pop() T {
	if q.n == 0 {
		panic("fifo: Pop from an empty queue")
	}
	var zero T
	v := q.ring[q.head]
	q.ring[q.head] = zero // do not keep the value alive
	q.head = (q.head + 1) & (len(q.ring) - 1)
	q.n--
	return v
}

// Front is the first value. It panics if the queue is empty.
func (q *Queue[T]) Front() T {
	if q.n == 0 {
		panic("fifo: Front of an empty queue")
	}
	return q.ring[q.head]
}

// All returns the values in the queue, in order. The queue must not change during the iteration.
func (q *Queue[T]) All() iter.Seq[T] {
	return func(yield func(T) bool) {
		for i := range q.n {
			if !yield(q.ring[(q.head+i)&(len(q.ring)-1)]) {
				return
			}
		}
	}
}

// Clear takes all values out.
func (q *Queue[T]) Clear() {
	clear(q.ring)
	q.head, q.n = 0, 0
}

const smallest = 8

func (q *Queue[T]) grow() {
	ring := make([]T, max(smallest, 2*len(q.ring)))
	n := copy(ring, q.ring[q.head:])
	copy(ring[n:], q.ring[:q.head])
	q.ring, q.head = ring, 0
}
