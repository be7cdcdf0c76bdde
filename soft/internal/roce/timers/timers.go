// Package timers keeps the deadlines of many objects in a heap.
package timers

import (
	"iter"
	"time"
)

// Timer is the deadline of an object, which embeds it or has it as a field, and sets Owner to itself
// once.
type Timer[T any] struct {
	Owner T
	at    time.Duration
	place int // index in the heap plus 1; zero: in none
}

// Queued reports whether the timer is in a heap.
func (t *Timer[T]) Queued() bool { return t.place != 0 }

// At is the deadline. It stays after the timer has left its heap.
func (t *Timer[T]) At() time.Duration { return t.at }

// Heap holds timers, the earliest first. Every operation takes logarithmic time. The zero value is
// empty. An entry has a copy of the deadline, so that comparing entries reads no owner.
type Heap[T any] []entry[T]

type entry[T any] struct {
	at time.Duration
	*Timer[T]
}

// First returns the earliest timer; nil: there is none.
func (h Heap[T]) First() *Timer[T] {
	if len(h) == 0 {
		return nil
	}
	return h[0].Timer
}

// Due returns the earliest timer if its deadline is not after now; nil: there is none.
func (h Heap[T]) Due(now time.Duration) *Timer[T] {
	if len(h) == 0 || h[0].at > now {
		return nil
	}
	return h[0].Timer
}

// All returns the owners of all timers, in no order.
func (h Heap[T]) All() iter.Seq[T] {
	return func(yield func(T) bool) {
		for _, x := range h {
			if !yield(x.Owner) {
				return
			}
		}
	}
}

// Set sets the deadline of a timer, and adds it to the heap unless it is there.
func (h *Heap[T]) Set(t *Timer[T], at time.Duration) {
	if t.place == 0 {
		*h = append(*h, entry[T]{})
		t.place = len(*h)
	}
	t.at = at
	i := t.place - 1
	(*h)[i] = entry[T]{at, t}
	h.down(h.up(i))
}

// Remove removes a timer, if it is in the heap.
func (h *Heap[T]) Remove(t *Timer[T]) {
	if t.place == 0 {
		return
	}
	i, last := t.place-1, len(*h)-1
	moved := (*h)[last]
	(*h)[last] = entry[T]{}
	*h = (*h)[:last]
	t.place = 0
	if i < last {
		h.put(i, moved)
		h.down(h.up(i))
	}
}

func (h Heap[T]) put(i int, x entry[T]) {
	h[i] = x
	x.place = i + 1
}

// up moves an entry up past its later parents, and returns its index.
func (h Heap[T]) up(i int) int {
	x := h[i]
	for i > 0 {
		parent := (i - 1) / 2
		if h[parent].at <= x.at {
			break
		}
		h.put(i, h[parent])
		i = parent
	}
	h.put(i, x)
	return i
}

// down moves an entry down past its earlier children.
func (h Heap[T]) down(i int) {
	x := h[i]
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if child+1 < len(h) && h[child+1].at < h[child].at {
			child++
		}
		if x.at <= h[child].at {
			break
		}
		h.put(i, h[child])
		i = child
	}
	h.put(i, x)
}
