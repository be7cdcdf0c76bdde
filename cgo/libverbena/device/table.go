//go:build linux && cgo && verbs

package main

import (
	"sync"
	"sync/atomic"
)

// A handle is the place of its object in the table, in the lower 24 bits, and the number of times
// that the place was used before. So a handle that a program has kept does not name a later object.
const (
	chunkBits = 12
	chunks    = 1 << 12
	placeBits = 24
	placeMask = 1<<placeBits - 1
)

type entry[T any] struct {
	handle uint32
	object *T
}

type chunk[T any] [1 << chunkBits]atomic.Pointer[entry[T]]

// table gives handles to objects. Zero is no handle. get takes no lock, since every post and poll
// begins with it.
type table[T any] struct {
	chunks [chunks]atomic.Pointer[chunk[T]]

	mu   sync.Mutex
	free []uint32 // the next handles of places that were used
	next uint32   // the last place that was used
}

// at returns the place of a handle, or nil.
func (t *table[T]) at(handle uint32) *atomic.Pointer[entry[T]] {
	place := handle & placeMask
	c := t.chunks[place>>chunkBits].Load()
	if c == nil {
		return nil
	}
	return &c[place&(1<<chunkBits-1)]
}

// get returns nil if there is no such object.
func (t *table[T]) get(handle uint32) *T {
	at := t.at(handle)
	if at == nil {
		return nil
	}
	e := at.Load()
	if e == nil || e.handle != handle {
		return nil
	}
	return e.object
}

// add returns zero if the table is full.
func (t *table[T]) add(object *T) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	var handle uint32
	if len(t.free) > 0 {
		handle, t.free = t.free[0], t.free[1:]
	} else {
		if t.next == placeMask {
			return 0
		}
		t.next++
		handle = t.next
	}
	c := &t.chunks[(handle&placeMask)>>chunkBits]
	if c.Load() == nil {
		c.Store(new(chunk[T]))
	}
	t.at(handle).Store(&entry[T]{handle, object})
	return handle
}

// remove returns nil if there is no such object.
func (t *table[T]) remove(handle uint32) *T {
	at := t.at(handle)
	if at == nil {
		return nil
	}
	e := at.Load()
	if e == nil || e.handle != handle || !at.CompareAndSwap(e, nil) {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free = append(t.free, handle+(1<<placeBits))
	return e.object
}
