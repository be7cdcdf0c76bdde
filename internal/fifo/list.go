package fifo

// Node links an element into a List. The element embeds a Node or has it as a field,
// and sets Value to itself once. A Node is in one list at a time, and must not be copied
// while it is in a list.
type Node[T any] struct {
	Value      T
	list       *List[T] // nil: in no list
	prev, next *Node[T]
}

// Queued reports whether the node is in a list.
func (e *Node[T]) Queued() bool { return e.list != nil }

// Next returns the node after this one, or nil.
func (e *Node[T]) Next() *Node[T] { return e.next }

// List is a first-in first-out queue of nodes. It allocates nothing. The zero value
// is empty. It must not be copied while nodes are in it.
type List[T any] struct {
	head, tail *Node[T]
	n          int
}

// Len is the number of nodes in the list.
func (l *List[T]) Len() int { return l.n }

// Front is the first node, or nil.
func (l *List[T]) Front() *Node[T] { return l.head }

// Values returns the values of all nodes, in order.
func (l *List[T]) Values() (list []T) {
	for e := l.head; e != nil; e = e.next {
		list = append(list, e.Value)
	}
	return list
}

// Push adds a node at the end. It panics if the node is in a list already.
func (l *List[T]) Push(e *Node[T]) {
	if e.list != nil {
		panic("fifo: Push of a node that is in a list")
	}
	e.list, e.prev = l, l.tail
	if l.tail == nil {
		l.head = e
	} else {
		l.tail.next = e
	}
	l.tail = e
	l.n++
}

// Pop takes the first node out and returns it, or nil if the list is empty.
func (l *List[T]) Pop() *Node[T] {
	e := l.head
	if e == nil {
		return nil
	}
	l.head = e.next
	if l.head == nil {
		l.tail = nil
	} else {
		l.head.prev = nil
	}
	e.list, e.next = nil, nil
	l.n--
	return e
}

// Remove removes a node from any place in the list, and reports whether it was in this list.
func (l *List[T]) Remove(e *Node[T]) bool {
	if e.list != l {
		return false
	}
	if e.prev == nil {
		l.head = e.next
	} else {
		e.prev.next = e.next
	}
	if e.next == nil {
		l.tail = e.prev
	} else {
		e.next.prev = e.prev
	}
	e.list, e.prev, e.next = nil, nil, nil
	l.n--
	return true
}
