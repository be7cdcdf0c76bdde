package buffers

import (
	"errors"
	"sync"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	smallChunk = 4 << 10
	// largeChunk is also the largest message, as with rsockets.
	largeChunk = 64 << 10
	slabSize   = 1 << 20
)

// Chunk is a piece of send memory. Messages are sent from it in order, and it is free again when the
// device has sent all of them.
type Chunk struct {
	Memory *mmap.Map
	offset int
	data   []byte
	next   *Chunk // in the pool

	written int // bytes that Write has put there
	posted  int // bytes of these given to the device
	done    int // bytes of these that the peer's device has acknowledged
}

// Pool has the send memory of all connections of a Stack. It grows as needed, and keeps its
// memory until the Stack ends.
type Pool struct {
	Device verbs.Device

	mu    sync.Mutex
	free  [2]*Chunk // small ones, large ones
	slabs []*mmap.Map
}

var chunkSizes = [2]int{smallChunk, largeChunk}

// kindFor is the index of the chunks for so many bytes.
func kindFor(bytes int) int {
	if bytes > smallChunk {
		return 1
	}
	return 0
}

// get returns a chunk: a large one for more than smallChunk bytes.
func (p *Pool) get(bytes int) (*Chunk, error) {
	kind := kindFor(bytes)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free[kind] == nil {
		if err := p.grow(kind); err != nil {
			return nil, err
		}
	}
	c := p.free[kind]
	p.free[kind], c.next = c.next, nil
	c.written, c.posted, c.done = 0, 0, 0
	return c, nil
}

func (p *Pool) put(c *Chunk) {
	kind := kindFor(len(c.data))
	p.mu.Lock()
	defer p.mu.Unlock()
	c.next, p.free[kind] = p.free[kind], c
}

func (p *Pool) grow(kind int) error {
	slab, err := mmap.Alloc(p.Device, slabSize, mmap.LocalReadOnly)
	if err != nil {
		return err
	}
	p.slabs = append(p.slabs, slab)
	size := chunkSizes[kind]
	for off := 0; off < slabSize; off += size {
		p.free[kind] = &Chunk{Memory: slab, offset: off, data: slab.Bytes()[off : off+size : off+size], next: p.free[kind]}
	}
	return nil
}

// Close releases the memory, which no connection uses any more.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []error
	for _, s := range p.slabs {
		list = append(list, s.Close())
	}
	p.slabs, p.free = nil, [2]*Chunk{}
	return errors.Join(list...)
}

// Outbound is what has been written and is not acknowledged. The lock of the connection guards it.
type Outbound struct {
	Pool   *Pool
	chunks []*Chunk // in order; the last is being filled
	held   int      // bytes written and not acknowledged
	unsent int      // bytes of these that the device does not have
}

// Room returns memory for up to n bytes, which Commit takes. It is empty if limit bytes are held.
func (o *Outbound) Room(n, limit int) ([]byte, error) {
	if n = min(n, limit-o.held); n <= 0 {
		return nil, nil
	}
	if len(o.chunks) == 0 || o.last().written == len(o.last().data) {
		c, err := o.Pool.get(n + o.unsent)
		if err != nil {
			return nil, err
		}
		o.chunks = append(o.chunks, c)
	}
	c := o.last()
	return c.data[c.written:min(c.written+n, len(c.data))], nil
}

func (o *Outbound) last() *Chunk { return o.chunks[len(o.chunks)-1] }

// Commit takes the first n bytes of the memory that Room has returned.
func (o *Outbound) Commit(n int) {
	o.last().written += n
	o.held += n
	o.unsent += n
}

// Unsent is the number of bytes that no message has taken.
func (o *Outbound) Unsent() int { return o.unsent }

// Post takes up to n bytes for a message: those at offset in the memory of the chunk. With none
// left, it returns no chunk.
func (o *Outbound) Post(n int) (c *Chunk, offset, length int) {
	for _, c := range o.chunks {
		if length = min(n, c.written-c.posted); length > 0 {
			offset = c.offset + c.posted
			c.posted += length
			o.unsent -= length
			return c, offset, length
		}
	}
	return nil, 0, 0
}

// Acknowledge notes that the peer's device has n bytes of a chunk.
func (o *Outbound) Acknowledge(c *Chunk, n int) {
	c.done += n
	o.held -= n
}

// Release gives back the chunks that are done with. While a call of Write is under way, the last
// one is not.
func (o *Outbound) Release(writing bool) {
	for len(o.chunks) > 0 {
		c := o.chunks[0]
		if c.done < c.written || writing && len(o.chunks) == 1 {
			return
		}
		o.Pool.put(c)
		o.chunks = append(o.chunks[:0], o.chunks[1:]...)
	}
}

// Free gives back all chunks. Nothing at the device uses them.
func (o *Outbound) Free() {
	for _, c := range o.chunks {
		o.Pool.put(c)
	}
	o.chunks, o.held, o.unsent = nil, 0, 0
}
