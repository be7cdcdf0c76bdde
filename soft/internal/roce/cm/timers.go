package cm

import "time"

// expirer is an object with a timer.
type expirer interface{ expire(now time.Duration) }

// timer is a deadline, and its place in the heap.
type timer struct {
	at    time.Duration
	index int // index plus 1; zero: not in the heap
	owner expirer
}

// timers is a heap with the earliest timer first. Every operation takes logarithmic time.
type timers []*timer

func (h *timers) set(t *timer, at time.Duration) {
	if t.index == 0 {
		*h = append(*h, t)
		t.index = len(*h)
	}
	t.at = at
	h.down(h.up(t.index - 1))
}

// remove removes a timer, if it is in the heap.
func (h *timers) remove(t *timer) {
	if t.index == 0 {
		return
	}
	i, last := t.index-1, len(*h)-1
	h.swap(i, last)
	(*h)[last] = nil
	*h = (*h)[:last]
	t.index = 0
	if i < last {
		h.down(h.up(i))
	}
}

func (h timers) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i+1, j+1
}

func (h timers) up(i int) int {
	for i > 0 {
		parent := (i - 1) / 2
		if h[parent].at <= h[i].at {
			break
		}
		h.swap(i, parent)
		i = parent
	}
	return i
}

func (h timers) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(h) {
			return
		}
		if child+1 < len(h) && h[child+1].at < h[child].at {
			child++
		}
		if h[i].at <= h[child].at {
			return
		}
		h.swap(i, child)
		i = child
	}
}
