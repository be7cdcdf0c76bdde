package local

import (
	"cmp"
	"slices"
	"unsafe"
)

// Memories are those that the device has allocated, ordered by address. They can be exported
// to devices of other processes.
type Memories []addressRange

type addressRange struct {
	from, to uintptr
	memory   *Memory
}

const (
	// minMemory is the smallest memory that can be exported, and maxMemories their greatest
	// number: each takes a file descriptor.
	minMemory   = 64 << 10
	maxMemories = 256
)

// find returns the memory that contains a piece, and the piece's offset in it. Nil: none does.
func (s Memories) find(piece []byte) (*Memory, uint64) {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(piece)))
	i, found := slices.BinarySearchFunc(s, at, func(m addressRange, at uintptr) int { return cmp.Compare(m.from, at) })
	if !found {
		i--
	}
	if i < 0 || at+uintptr(len(piece)) > s[i].to {
		return nil, 0
	}
	return s[i].memory, uint64(at - s[i].from)
}

// Fits reports whether another memory of that size can be exported.
func (s Memories) Fits(size int) bool { return size >= minMemory && len(s) < maxMemories }

// Contains reports whether one of the memories contains a piece.
func (s Memories) Contains(piece []byte) bool {
	m, _ := s.find(piece)
	return m != nil
}

// Add adds a memory.
func (s *Memories) Add(m *Memory) {
	from := uintptr(unsafe.Pointer(unsafe.SliceData(m.Bytes)))
	i, _ := slices.BinarySearchFunc(*s, from, func(m addressRange, at uintptr) int { return cmp.Compare(m.from, at) })
	*s = slices.Insert(*s, i, addressRange{from: from, to: from + uintptr(cap(m.Bytes)), memory: m})
}

// Remove removes a memory.
func (s *Memories) Remove(m *Memory) {
	*s = slices.DeleteFunc(*s, func(x addressRange) bool { return x.memory == m })
}
