//go:build linux && cgo && verbs

package main

import (
	"sync"
	"sync/atomic"
)

const (
	chunkBits = 12
	chunks    = 1 << 12
)

type chunk[T any] [1 << chunkBits]atomic.Pointer[T]

// table gives handles to objects. Handles count from 1, and are used again. get takes no lock,
// since every post and poll begins with it.
type table[T any] struct {
	chunks [chunks]atomic.Pointer[chunk[T]]

	mu   sync.Mutex
	free []uint32
	next uint32
}

// get returns nil if there is no such object.
func (t *table[T]) get(handle uint32) *T {
	if handle>>chunkBits >= chunks {
		return nil
	}
	c := t.chunks[handle>>chunkBits].Load()
	if c == nil {
		return nil
	}
	return c[handle&(1<<chunkBits-1)].Load()
}

// add returns zero if the table is full.
func (t *table[T]) add(object *T) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	var handle uint32
	if n := len(t.free); n > 0 {
		handle, t.free = t.free[n-1], t.free[:n-1]
	} else {
		if (t.next+1)>>chunkBits >= chunks {
			return 0
		}
		t.next++
		handle = t.next
	}
	at := &t.chunks[handle>>chunkBits]
	if at.Load() == nil {
		at.Store(new(chunk[T]))
	}
	at.Load()[handle&(1<<chunkBits-1)].Store(object)
	return handle
}

// remove returns nil if there is no such object.
func (t *table[T]) remove(handle uint32) *T {
	object := t.get(handle)
	if object == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.chunks[handle>>chunkBits].Load()[handle&(1<<chunkBits-1)].CompareAndSwap(object, nil) {
		return nil
	}
	t.free = append(t.free, handle)
	return object
}
