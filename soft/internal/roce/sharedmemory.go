package roce

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"unsafe"

	"github.com/verbena-rdma/verbena/soft/internal/roce/local"
	"github.com/verbena-rdma/verbena/verbs"
)

// sharedMemories are those that the device has made, in the order of their addresses. Their
// content can be shown to devices of other processes.
type sharedMemories []sharedMemory

type sharedMemory struct {
	from, to uintptr
	memory   *local.Memory
}

const (
	// minShared is the smallest memory that can be shown, and maxShared how many there
	// are at most: each takes a file descriptor.
	minShared = 64 << 10
	maxShared = 256
)

// find returns the memory that a piece lies in, and where, or nil.
func (s sharedMemories) find(piece []byte) (*local.Memory, uint64) {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(piece)))
	i, found := slices.BinarySearchFunc(s, at, func(m sharedMemory, at uintptr) int { return cmp.Compare(m.from, at) })
	if !found {
		i--
	}
	if i < 0 || at+uintptr(len(piece)) > s[i].to {
		return nil, 0
	}
	return s[i].memory, uint64(at - s[i].from)
}

// AllocMemory implements verbs.MemoryDevice.
func (d *Device) AllocMemory(size int) (mem []byte, free func() error, err error) {
	d.mu.Lock()
	full := !d.main.local.on || size < minShared || len(d.memories) >= maxShared
	d.mu.Unlock()
	if full {
		return nil, nil, fmt.Errorf("device %s: memory of %d bytes that other processes can see: %w", d.cfg.Name, size, verbs.ErrNotSupported)
	}
	m, err := local.AllocMemory(size)
	if err != nil {
		return nil, nil, err
	}
	from := uintptr(unsafe.Pointer(unsafe.SliceData(m.Bytes)))
	entry := sharedMemory{from: from, to: from + uintptr(cap(m.Bytes)), memory: m}
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.memories
	i, _ := slices.BinarySearchFunc(s, from, func(m sharedMemory, at uintptr) int { return cmp.Compare(m.from, at) })
	d.memories = slices.Insert(s, i, entry)
	return m.Bytes, func() error { return d.freeMemory(entry) }, nil
}

// revoke has devices of other processes take no more payload from mem. The lock is held.
func (d *Device) revoke(mem []byte) {
	if m, _ := d.memories.find(mem); m == nil {
		return
	}
	for _, s := range d.mu.list {
		for _, p := range s.local.polled.peers {
			p.channel.RevokeMemory(mem)
		}
	}
}

func (d *Device) freeMemory(entry sharedMemory) error {
	d.mu.Lock()
	d.memories = slices.DeleteFunc(d.memories, func(m sharedMemory) bool { return m == entry })
	for _, s := range d.mu.list {
		for i := len(s.local.polled.peers) - 1; i >= 0; i-- { // a channel may end
			if p := s.local.polled.peers[i]; !p.channel.Forget(entry.memory) {
				p.end(net.ErrClosed)
			}
		}
	}
	d.mu.Unlock()
	return entry.memory.Free()
}
