package buffers

import (
	"errors"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	// SmallestChunk is the send memory that every connection can have at any time.
	SmallestChunk = 4 << 10
	// largeChunk is also the largest message, as with rsockets.
	largeChunk = 64 << 10
	slabSize   = 1 << 20

	// trimInterval is how long a slab must not have been needed before it is freed.
	trimInterval = 2 * time.Second
	// trimMost is how many slabs are freed at a time, and trimPause how long the next ones wait: the
	// goroutine that frees them has other work.
	trimMost  = 16
	trimPause = 10 * time.Millisecond
)

// Chunk is a piece of send memory. Messages are sent from it in order, and it is free again when the
// device has sent all of them.
type Chunk struct {
	Memory *mmap.Map
	slab   *slab
	offset int
	data   []byte
	next   *Chunk // among the free ones of the slab

	written int // bytes that Write has put there
	posted  int // bytes of these given to the device
	done    int // bytes of these that the peer's device has acknowledged
}

// slab is memory that is cut into chunks of one class.
type slab struct {
	class *class
	place fifo.Node[*slab] // in partial or empty of the class, or in none
	free  *Chunk
	used  int // chunks
	mem   *mmap.Map
}

// class is the chunks of one size.
type class struct {
	size    int
	slabs   int
	used    int              // chunks
	partial fifo.List[*slab] // with used chunks and free ones
	empty   fifo.List[*slab]
	low     int // empty slabs that were not needed since schedule and are not freed
}

// Pool is the send memory of all connections of a Stack. Connections have small and large chunks of
// it, from slabs that are allocated when they are needed, and freed when they have not been needed
// for some time.
//
// There is a small chunk for each connection. It gets another only if afterwards it holds no more
// than is still free: so one that does not empty its chunks leaves memory for others.
type Pool struct {
	device      verbs.Device
	slabs       int // at most
	connections int // at most
	// after calls a function later.
	after func(time.Duration, func()) host.Timer

	mu      sync.Mutex
	small   class
	large   class
	holders int        // connections that hold a small chunk
	timer   host.Timer // nil: no slab is empty
	closed  bool
}

// NewPool makes a pool of at most so many bytes, for at most so many connections. There must be
// SendMemoryFor(connections) bytes at least. after calls a function later, when no method of a
// connection's Outbound runs on that goroutine.
func NewPool(dev verbs.Device, bytes, connections int, after func(time.Duration, func()) host.Timer) *Pool {
	return &Pool{
		device: dev, slabs: bytes / slabSize, connections: connections, after: after,
		small: class{size: SmallestChunk}, large: class{size: largeChunk},
	}
}

// SendMemoryFor is how much memory a pool needs for so many connections, in bytes.
func SendMemoryFor(connections int) int {
	return (connections*SmallestChunk + slabSize - 1) / slabSize * slabSize
}

// Held is the number of bytes of all slabs.
func (p *Pool) Held() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return (p.small.slabs + p.large.slabs) * slabSize
}

// reserved is how many slabs the small chunks need that are in use, or are promised to connections
// which hold none.
func (p *Pool) reserved(more int) int {
	const perSlab = slabSize / SmallestChunk
	return (p.small.used + p.connections - p.holders + more + perSlab - 1) / perSlab
}

// fair reports whether a connection that holds so many bytes may have another chunk.
func (p *Pool) fair(held, size int) bool {
	used := p.small.used*p.small.size + p.large.used*p.large.size
	promised := (p.connections - p.holders) * p.small.size
	return held+size <= p.slabs*slabSize-used-promised-size
}

// get returns a chunk for o to put so many bytes in: a large one for more than a small one holds, if
// there is one. It returns nil if the connection has to wait until its peer's device has
// acknowledged more.
func (p *Pool) get(bytes int, o *Outbound) (c *Chunk, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if bytes > p.small.size && p.fair(o.size, p.large.size) {
		c, err = p.take(&p.large)
	}
	if c == nil && (o.small == 0 || p.fair(o.size, p.small.size) && p.reserved(1)+p.large.slabs <= p.slabs) {
		c, err = p.take(&p.small)
	}
	if c == nil {
		if o.size > 0 { // it goes on with what it has
			err = nil
		}
		return nil, err
	}
	c.written, c.posted, c.done = 0, 0, 0
	if o.size += len(c.data); c.slab.class == &p.small {
		if o.small++; o.small == 1 {
			p.holders++
		}
	}
	return c, nil
}

// take takes a free chunk of a class, from a new slab if there is none. It returns nil if there may
// be no other slab.
func (p *Pool) take(k *class) (*Chunk, error) {
	e := k.partial.Front()
	if e == nil {
		if e = k.empty.Pop(); e == nil {
			s, err := p.grow(k)
			if s == nil {
				return nil, err
			}
			e = &s.place
		}
		k.low = min(k.low, k.empty.Len())
		k.partial.Push(e)
	}
	s := e.Value
	c := s.free
	s.free, c.next = c.next, nil
	s.used++
	k.used++
	if s.free == nil {
		k.partial.Remove(e)
	}
	return c, nil
}

// grow allocates a slab. If there are as many as there may be, it frees an empty one of the other
// class for that, or returns nil.
func (p *Pool) grow(k *class) (*slab, error) {
	other, most := &p.large, p.slabs
	if k == &p.large {
		other, most = &p.small, p.slabs-max(0, p.reserved(0)-p.small.slabs)
	}
	for p.small.slabs+p.large.slabs >= most {
		if other.empty.Len() == 0 || p.freeEmpty(other) != nil {
			return nil, nil
		}
		if k == &p.large {
			most = p.slabs - max(0, p.reserved(0)-p.small.slabs)
		}
	}
	mem, err := mmap.Alloc(p.device, slabSize, mmap.LocalReadOnly)
	if err != nil {
		return nil, err
	}
	s := &slab{class: k, mem: mem}
	s.place.Value = s
	for off := 0; off < slabSize; off += k.size {
		s.free = &Chunk{Memory: mem, slab: s, offset: off, data: mem.Bytes()[off : off+k.size : off+k.size], next: s.free}
	}
	k.slabs++
	return s, nil
}

// put takes back a chunk of o, which nothing at the device uses.
func (p *Pool) put(c *Chunk, o *Outbound) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := c.slab
	k := s.class
	if o.size -= len(c.data); k == &p.small {
		if o.small--; o.small == 0 {
			p.holders--
		}
	}
	if s.free == nil {
		k.partial.Push(&s.place)
	}
	c.next, s.free = s.free, c
	s.used--
	k.used--
	if s.used > 0 {
		return
	}
	k.partial.Remove(&s.place)
	k.empty.Push(&s.place)
	p.schedule()
}

// schedule has trim called later, if there is an empty slab.
func (p *Pool) schedule() {
	if p.timer == nil && !p.closed && p.small.empty.Len()+p.large.empty.Len() > 0 {
		p.small.low, p.large.low = p.small.empty.Len(), p.large.empty.Len()
		p.timer = p.after(trimInterval, p.trim)
	}
}

// trim frees the slabs that were empty all the time since schedule. Between two of them, connections
// get chunks.
func (p *Pool) trim() {
	for range trimMost {
		if !p.freeUnneeded() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.timer = nil
			p.schedule()
			return
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.timer = p.after(trimPause, p.trim)
	}
}

// freeUnneeded frees a slab that was empty all the time since schedule, if there is one.
func (p *Pool) freeUnneeded() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range []*class{&p.small, &p.large} {
		if k.low > 0 {
			k.low--
			_ = p.freeEmpty(k) // it is tried again, and Close reports what still fails
			return true
		}
	}
	return false
}

// freeEmpty frees an empty slab, whose chunks neither a peer nor the device uses. If that fails, the
// slab stays, to be tried again.
func (p *Pool) freeEmpty(k *class) error {
	e := k.empty.Pop()
	if err := e.Value.mem.Close(); err != nil {
		k.empty.Push(e)
		return err
	}
	k.slabs--
	k.low = min(k.low, k.empty.Len())
	return nil
}

// Close frees all memory, of which no connection has any left.
func (p *Pool) Close() (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.timer != nil {
		p.timer.Stop()
	}
	for _, k := range []*class{&p.small, &p.large} {
		for range k.empty.Len() {
			err = errors.Join(err, p.freeEmpty(k))
		}
	}
	return err
}

// Outbound is what has been written and is not acknowledged. The lock of the connection guards it.
type Outbound struct {
	Pool   *Pool
	chunks []*Chunk // in order; the last is being filled
	size   int      // bytes of chunks
	small  int      // small chunks
	held   int      // bytes written and not acknowledged
	unsent int      // bytes of these that the device does not have
	total  uint64   // bytes that Commit has taken
}

// Total is the number of bytes that Commit has taken.
func (o *Outbound) Total() uint64 { return o.total }

// Held is the number of bytes that were not acknowledged.
func (o *Outbound) Held() int { return o.held }

// Room returns memory for up to n bytes, which Commit takes. It is empty if limit bytes are held, or
// if there is no memory: then the caller waits until more has been acknowledged.
func (o *Outbound) Room(n, limit int) ([]byte, error) {
	if n = min(n, limit-o.held); n <= 0 {
		return nil, nil
	}
	if len(o.chunks) == 0 || o.last().written == len(o.last().data) {
		c, err := o.Pool.get(n+o.unsent, o)
		switch {
		case c != nil:
			o.chunks = append(o.chunks, c)
		case len(o.chunks) == 1 && o.last().done == o.last().written:
			c = o.last() // nothing at the device uses it
			c.written, c.posted, c.done = 0, 0, 0
		default:
			return nil, err
		}
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
	o.total += uint64(n)
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
		o.Pool.put(c, o)
		o.chunks = append(o.chunks[:0], o.chunks[1:]...)
	}
}

// Free gives back all chunks. Nothing at the device uses them.
func (o *Outbound) Free() {
	for _, c := range o.chunks {
		o.Pool.put(c, o)
	}
	o.chunks, o.held, o.unsent = nil, 0, 0
}
