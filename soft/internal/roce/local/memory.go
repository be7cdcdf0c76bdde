package local

import (
	"encoding/binary"
	"errors"
)

// Memory is memory of this process that can be shown to others. It has a memory file (memfd)
// of its own, with nothing else in it.
type Memory struct {
	Bytes []byte
	file  file
}

const (
	// maxShown bounds the memories that a channel shows, and those that it maps.
	maxShown = 256
	// MinReference is the smallest payload for which references into shown memory are worth
	// it.
	MinReference = 8 << 10
)

// shown holds the memories of this process that the peer can map.
type shown struct {
	numbers map[*Memory]uint32
	next    uint32
}

// Shown returns the number of a memory at the peer. If the peer has not mapped it yet, Shown
// requests that, and reports false.
func (c *Channel) Shown(m *Memory) (number uint32, ok bool) {
	number, ok = c.shown.numbers[m]
	if !ok && len(c.shown.numbers) < maxShown {
		c.show(m)
	}
	return number &^ pending, ok && number&pending == 0
}

// pending marks the number of a memory that the peer has not acknowledged yet.
const pending = 1 << 31

// Budget bounds what a device maps of its peers. The mappings (vm.max_map_count) and the
// address space of a process are limited, and no peer may use them up. Page tables take 1/512
// of the size that is mapped, and a peer can show memory many times that it allocated once.
// The bound on its number of memories keeps the page tables in proportion to what it has
// allocated.
type Budget struct {
	usage
	peers map[int]*usage // by process ID
}

// usage is the number and the total size of mappings.
type usage struct {
	memories int
	bytes    uint64
}

const (
	maxSeen      = 8 << 10
	maxSeenBytes = 16 << 40
	// Of one process, which may have several devices and channels.
	maxSeenOfPeer      = 4 * maxShown
	maxSeenBytesOfPeer = maxSeenBytes / 4
)

// reserve reserves a mapping of n bytes of a process, and reports false if the budget is
// exhausted.
func (b *Budget) reserve(peer int, n uint64) bool {
	p := b.peers[peer]
	if p == nil {
		p = new(usage)
	}
	if !b.fits(n, maxSeen, maxSeenBytes) || !p.fits(n, maxSeenOfPeer, maxSeenBytesOfPeer) {
		return false
	}
	if b.peers == nil {
		b.peers = make(map[int]*usage)
	}
	b.peers[peer] = p
	b.add(1, n)
	p.add(1, n)
	return true
}

// release returns what was reserved for a mapping.
func (b *Budget) release(peer int, n uint64) {
	p := b.peers[peer]
	b.add(-1, -n)
	p.add(-1, -n)
	if p.memories == 0 {
		delete(b.peers, peer)
	}
}

func (u *usage) fits(n uint64, memories int, bytes uint64) bool {
	return u.memories < memories && n <= bytes-u.bytes
}

func (u *usage) add(memories int, bytes uint64) {
	u.memories += memories
	u.bytes += bytes
}

// show sends a memory to the peer.
func (c *Channel) show(m *Memory) {
	c.shown.next++
	number := c.shown.next &^ pending
	if c.loop != nil {
		c.seen.memories[number], c.seen.last = m.Bytes[:cap(m.Bytes)], number
		c.shown.numbers[m] = number
		return
	}
	if c.link.show(number, m) {
		c.shown.numbers[m] = number | pending
	}
}

// acknowledged records that the peer has mapped a memory.
func (c *Channel) acknowledged(number uint32) {
	for m, n := range c.shown.numbers {
		if n == number|pending {
			c.shown.numbers[m] = number
		}
	}
}

// Forget makes the peer unmap a memory, which is about to be freed. The peer must have
// acknowledged all packets that refer to it. Forget reports false if the peer's message queue
// is full: then the channel has to be closed.
func (c *Channel) Forget(m *Memory) bool {
	number, ok := c.shown.numbers[m]
	delete(c.shown.numbers, m)
	if c.loop != nil {
		delete(c.seen.memories, number)
		return true
	}
	return !ok || c.link.forget(number&^pending)
}

// seen holds the peer's memories that this process has mapped, by the peer's numbers.
type seen struct {
	memories map[uint32][]byte
	last     uint32 // the greatest number so far
}

// errForgotten: a record refers to memory that its owner has freed meanwhile.
var errForgotten = errors.New("the memory has been freed")

// resolve appends the pieces that references name.
func (s *seen) resolve(pieces [][]byte, refs []byte) ([][]byte, error) {
	if len(refs) == 0 || len(refs)%referenceLen != 0 || len(refs) > MaxReferences*referenceLen {
		return pieces, ErrDisorder
	}
	total := uint64(0)
	for ; len(refs) > 0; refs = refs[referenceLen:] {
		number := binary.LittleEndian.Uint32(refs)
		mem := s.memories[number]
		if mem == nil && number <= s.last {
			return pieces, errForgotten
		}
		n := uint64(binary.LittleEndian.Uint32(refs[4:]))
		off := binary.LittleEndian.Uint64(refs[8:])
		total += n
		if n == 0 || total > MaxInline || off > uint64(len(mem)) || n > uint64(len(mem))-off {
			return pieces, ErrDisorder
		}
		pieces = append(pieces, mem[off:off+n:off+n])
	}
	return pieces, nil
}
