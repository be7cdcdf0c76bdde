package bufinv

import (
	"fmt"

	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/mmap"
)

// PoolConfig says how a Pool divides memory.
type PoolConfig struct {
	Count int // elements, 1 to 2^24
	Size  int // bytes of each, at least 1
	// Align is the alignment of each element's address, a power of two. Zero means 1: elements
	// without gaps.
	Align int
}

// Pool is a stock of Bufs of one size that divide the memory of one Map.
type Pool struct {
	s store
	m *mmap.Map
}

// NewPool makes a pool over m, which it holds until Close. The elements must fit into m. Its
// errors match ErrRange, ErrInvalid and those of mmap.
func NewPool(m *mmap.Map, cfg PoolConfig) (*Pool, error) {
	if cfg.Align == 0 {
		cfg.Align = 1
	}
	switch {
	case m == nil:
		return nil, fmt.Errorf("make buffer pool: %w: no memory map is given", ErrInvalid)
	case cfg.Count < 1 || cfg.Count > maxBufs:
		return nil, fmt.Errorf("make buffer pool: %w: %d elements; give 1 to %d", ErrRange, cfg.Count, maxBufs)
	case cfg.Size < 1:
		return nil, fmt.Errorf("make buffer pool: %w: the element size is %d bytes; give at least 1", ErrRange, cfg.Size)
	case cfg.Align < 0 || cfg.Align&(cfg.Align-1) != 0:
		return nil, fmt.Errorf("make buffer pool: %w: the alignment is %d; give a power of two", ErrInvalid, cfg.Align)
	}
	align := uint64(cfg.Align)
	first := -m.Addr() & (align - 1)
	stride := (uint64(cfg.Size) + align - 1) &^ (align - 1)
	// This divides, because the product may not fit into 64 bits.
	left := uint64(m.Len())
	if left < first || left-first < uint64(cfg.Size) || (left-first-uint64(cfg.Size))/stride < uint64(cfg.Count-1) {
		return nil, fmt.Errorf("make buffer pool: %w: %d elements of %d bytes, aligned to %d, do not fit into the %d bytes of the memory map",
			ErrRange, cfg.Count, cfg.Size, cfg.Align, m.Len())
	}
	if err := m.Friends(friend.Package{}).HoldFor(friend.BufferPool); err != nil {
		return nil, fmt.Errorf("make buffer pool: %w", err)
	}
	p := &Pool{m: m, s: store{bounded: true, pool: true}}
	bufs := make([]Buf, cfg.Count)
	for i := range bufs {
		bufs[i].m, bufs[i].off, bufs[i].size = m, int(first+uint64(i)*stride), cfg.Size
	}
	p.s.grow(bufs)
	return p, nil
}

// Alloc takes an element out of the pool, with no data in it. Its errors, which are in the
// Buf, match ErrExhausted and ErrClosed.
func (p *Pool) Alloc() *Buf {
	b := p.s.take()
	if b.err == nil {
		b.dataOff, b.dataLen = 0, 0
		b.version++
		b.refs.Store(1)
	}
	return b
}

// Total is the number of elements, free and in use.
func (p *Pool) Total() int {
	_, total := p.s.count()
	return total
}

// Available is the number of elements that are free.
func (p *Pool) Available() int {
	free, _ := p.s.count()
	return free
}

// Close ends the pool and releases its Map. It fails with ErrInUse while elements are in use.
// Closing again does nothing.
func (p *Pool) Close() error {
	if ended, err := p.s.close("buffer pool"); err != nil || !ended {
		return err
	}
	if err := p.m.Friends(friend.Package{}).ReleaseFor(friend.BufferPool); err != nil {
		return fmt.Errorf("close buffer pool: %w", err)
	}
	return nil
}
