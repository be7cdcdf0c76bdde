package transfer

// fifo is a queue. The zero value is empty.
type fifo[T any] struct {
	items []T
	head  int
}

func (f *fifo[T]) len() int { return len(f.items) - f.head }

func (f *fifo[T]) push(v T) {
	if f.head > 16 && f.head > len(f.items)/2 {
		n := copy(f.items, f.items[f.head:])
		clear(f.items[n:])
		f.items, f.head = f.items[:n], 0
	}
	f.items = append(f.items, v)
}

// front is the first, or the zero value.
func (f *fifo[T]) front() (v T) {
	if f.len() > 0 {
		v = f.items[f.head]
	}
	return v
}

// pop removes the first, if there is one.
func (f *fifo[T]) pop() (v T) {
	if f.len() > 0 {
		var none T
		v, f.items[f.head] = f.items[f.head], none
		if f.head++; f.head == len(f.items) {
			f.items, f.head = f.items[:0], 0
		}
	}
	return v
}
