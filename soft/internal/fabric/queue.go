package fabric

import "time"

// Queue holds events, the earliest first. The zero value is empty.
type Queue[T any] struct{ items []item[T] }

type item[T any] struct {
	at    time.Duration
	order uint64
	event T
}

// arity is how many children a node of the heap has: four fit in few cache lines.
const arity = 4

// Len is the number of events.
func (q *Queue[T]) Len() int { return len(q.items) }

// Next is the time of the first event. There must be one.
func (q *Queue[T]) Next() time.Duration { return q.items[0].at }

// Push adds an event. Of events at the same time, the one with the lesser order is first.
func (q *Queue[T]) Push(at time.Duration, order uint64, event T) {
	q.items = append(q.items, item[T]{at, order, event})
	i := len(q.items) - 1
	x := q.items[i]
	for i > 0 {
		parent := (i - 1) / arity
		if !x.before(&q.items[parent]) {
			break
		}
		q.items[i] = q.items[parent]
		i = parent
	}
	q.items[i] = x
}

// Pop removes the first event. There must be one.
func (q *Queue[T]) Pop() T {
	first := q.items[0].event
	last := len(q.items) - 1
	x := q.items[last]
	q.items[last] = item[T]{}
	q.items = q.items[:last]
	if last > 0 {
		q.down(x)
	}
	return first
}

// down puts x in the place of the first item.
func (q *Queue[T]) down(x item[T]) {
	i := 0
	for {
		child := arity*i + 1
		if child >= len(q.items) {
			break
		}
		least := child
		for c := child + 1; c < min(child+arity, len(q.items)); c++ {
			if q.items[c].before(&q.items[least]) {
				least = c
			}
		}
		if !q.items[least].before(&x) {
			break
		}
		q.items[i] = q.items[least]
		i = least
	}
	q.items[i] = x
}

func (x *item[T]) before(y *item[T]) bool {
	return x.at < y.at || x.at == y.at && x.order < y.order
}
