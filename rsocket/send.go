package rsocket

import (
	"errors"
	"sync"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	smallChunk = 4 << 10
	// largeChunk is also the largest message, as it is for rsockets.
	largeChunk = 64 << 10
	slabSize   = 1 << 20
)

// chunk is a piece of send memory. Messages are sent from it in order, and it is free again when the
// device has sent all of them.
type chunk struct {
	memory *mmap.Map
	offset int
	data   []byte
	next   *chunk // in the pool

	written int // bytes that Write has put there
	posted  int // bytes of these given to the device
	done    int // bytes of these that the peer's device has acknowledged
}

// chunkPool has the send memory of all connections of a Stack. It grows as needed, and keeps its
// memory until the Stack ends.
type chunkPool struct {
	dev verbs.Device

	mu    sync.Mutex
	free  [2]*chunk // small ones, large ones
	slabs []*mmap.Map
}

var chunkSizes = [2]int{smallChunk, largeChunk}

// get returns a chunk: a large one for more than smallChunk bytes.
func (p *chunkPool) get(bytes int) (*chunk, error) {
	kind := 0
	if bytes > smallChunk {
		kind = 1
	}
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

func (p *chunkPool) put(c *chunk) {
	kind := 0
	if len(c.data) > smallChunk {
		kind = 1
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c.next, p.free[kind] = p.free[kind], c
}

func (p *chunkPool) grow(kind int) error {
	slab, err := mmap.Alloc(p.dev, slabSize, mmap.LocalReadOnly)
	if err != nil {
		return err
	}
	p.slabs = append(p.slabs, slab)
	size := chunkSizes[kind]
	for off := 0; off < slabSize; off += size {
		p.free[kind] = &chunk{memory: slab, offset: off, data: slab.Bytes()[off : off+size : off+size], next: p.free[kind]}
	}
	return nil
}

func (p *chunkPool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []error
	for _, s := range p.slabs {
		list = append(list, s.Close())
	}
	p.slabs, p.free = nil, [2]*chunk{}
	return errors.Join(list...)
}

// outbound is what has been written and is not acknowledged. The lock of the connection guards it.
type outbound struct {
	pool   *chunkPool
	chunks []*chunk // in order; the last is being filled
	held   int      // bytes written and not acknowledged
	unsent int      // bytes of these that the device does not have
}

// room returns memory for up to n bytes, which commit takes. It is empty if limit bytes are held.
func (o *outbound) room(n, limit int) ([]byte, error) {
	if n = min(n, limit-o.held); n <= 0 {
		return nil, nil
	}
	if len(o.chunks) == 0 || o.last().written == len(o.last().data) {
		c, err := o.pool.get(n + o.unsent)
		if err != nil {
			return nil, err
		}
		o.chunks = append(o.chunks, c)
	}
	c := o.last()
	return c.data[c.written:min(c.written+n, len(c.data))], nil
}

func (o *outbound) last() *chunk { return o.chunks[len(o.chunks)-1] }

// commit takes the first n bytes of the memory that room has returned.
func (o *outbound) commit(n int) {
	o.last().written += n
	o.held += n
	o.unsent += n
}

// post takes up to n bytes for a message. With none left, it returns no chunk.
func (o *outbound) post(n int) (c *chunk, offset, length int) {
	if o.unsent == 0 {
		return nil, 0, 0
	}
	for _, c := range o.chunks {
		if length = min(n, c.written-c.posted); length > 0 {
			offset = c.posted
			c.posted += length
			o.unsent -= length
			return c, offset, length
		}
	}
	return nil, 0, 0
}

// unpost undoes post for the last message.
func (o *outbound) unpost(c *chunk, n int) {
	c.posted -= n
	o.unsent += n
}

// acknowledge notes that the peer's device has n bytes of a chunk.
func (o *outbound) acknowledge(c *chunk, n int) {
	c.done += n
	o.held -= n
}

// release gives back the chunks that are done with. While a call of Write is under way, the last
// one is not.
func (o *outbound) release(writing bool) {
	for len(o.chunks) > 0 {
		c := o.chunks[0]
		if c.done < c.written || writing && len(o.chunks) == 1 {
			return
		}
		o.pool.put(c)
		o.chunks = append(o.chunks[:0], o.chunks[1:]...)
	}
}

// free gives back all chunks. Nothing at the device uses them.
func (o *outbound) free() {
	for _, c := range o.chunks {
		o.pool.put(c)
	}
	o.chunks, o.held, o.unsent = nil, 0, 0
}
