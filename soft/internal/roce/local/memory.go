package local

import (
	"encoding/binary"
	"errors"
)

// Memory is memory of this process that can be exported to others. It has a memory file (memfd)
// of its own, with nothing else in it.
type Memory struct {
	Bytes []byte
	file  file
}

const (
	// maxExports bounds the memories that a channel exports, and those that it maps.
	maxExports = 256
	// MinReference is the smallest payload for which references into exported memory are
	// worth it.
	MinReference = 8 << 10
)

// exports holds the memories of this process that the peer can map.
type exports struct {
	numbers map[*Memory]uint32
	next    uint32
}

// Exported returns the number of a memory at the peer. If the peer has not mapped it yet, Exported
// requests that, and reports false.
func (c *Channel) Exported(m *Memory) (number uint32, ok bool) {
	number, ok = c.exported.numbers[m]
	if !ok && len(c.exported.numbers) < maxExports {
		c.exportMemory(m)
	}
	return number &^ unacknowledged, ok && number&unacknowledged == 0
}

// unacknowledged marks the number of a memory that the peer has not acknowledged yet.
const unacknowledged = 1 << 31

// exportMemory sends a memory to the peer.
func (c *Channel) exportMemory(m *Memory) {
	c.exported.next++
	number := c.exported.next &^ unacknowledged
	if c.loop != nil {
		c.imported.memories[number], c.imported.last = m.Bytes[:cap(m.Bytes)], number
		c.exported.numbers[m] = number
		return
	}
	if c.link.export(number, m) {
		c.exported.numbers[m] = number | unacknowledged
	}
}

// acknowledged records that the peer has mapped a memory.
func (c *Channel) acknowledged(number uint32) {
	for m, n := range c.exported.numbers {
		if n == number|unacknowledged {
			c.exported.numbers[m] = number
		}
	}
}

// Forget makes the peer unmap a memory, which is about to be freed. The peer must have
// acknowledged all packets that refer to it. Forget reports false if the peer's message queue
// is full: then the channel has to be closed.
func (c *Channel) Forget(m *Memory) bool {
	number, ok := c.exported.numbers[m]
	delete(c.exported.numbers, m)
	if c.loop != nil {
		delete(c.imported.memories, number)
		return true
	}
	return !ok || c.link.forget(number&^unacknowledged)
}

// imports holds the peer's memories that this process has mapped, by the peer's numbers.
type imports struct {
	memories map[uint32][]byte
	last     uint32 // the greatest number so far
}

// errFreed: a record refers to memory that its owner has freed meanwhile.
var errFreed = errors.New("the memory has been freed")

// resolve appends the pieces that references name.
func (s *imports) resolve(pieces [][]byte, refs []byte) ([][]byte, error) {
	if len(refs) == 0 || len(refs)%referenceLen != 0 || len(refs) > MaxReferences*referenceLen {
		return pieces, ErrCorrupt
	}
	total := uint64(0)
	for ; len(refs) > 0; refs = refs[referenceLen:] {
		number := binary.LittleEndian.Uint32(refs)
		mem := s.memories[number]
		if mem == nil && number <= s.last {
			return pieces, errFreed
		}
		n := uint64(binary.LittleEndian.Uint32(refs[4:]))
		off := binary.LittleEndian.Uint64(refs[8:])
		total += n
		if n == 0 || total > MaxInline || off > uint64(len(mem)) || n > uint64(len(mem))-off {
			return pieces, ErrCorrupt
		}
		pieces = append(pieces, mem[off:off+n:off+n])
	}
	return pieces, nil
}
