package main

import (
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
)

// messageLimit is the greatest size of a task that consumes a receive, in bytes. Both ends
// have to divide the data in the same way, and the kernel's rxe has no longer messages.
const messageLimit = 8 << 20

// part is the data of one task: n bytes of a connection's data at off.
type part struct{ off, n int }

// parts divides the data of a connection into a part for each task. Empty data is one part,
// since a message may be empty.
func (e *end) parts() []part {
	limit := int(e.rdma.Capabilities().MaxMessage)
	if e.operation.shape == messages {
		limit = min(limit, messageLimit)
	}
	parts := divide(e.size, limit)
	if len(parts) > 1 {
		e.log.Info().Msgf("%d bytes are more than the %d of one task: there are %d tasks", e.size, limit, len(parts))
	}
	return parts
}

func divide(size, limit int) []part {
	parts := []part{{0, min(size, limit)}}
	for off := limit; off < size; off += limit {
		parts = append(parts, part{off, min(size-off, limit)})
	}
	return parts
}

// region returns the memory for the data of a connection, within that for all of them.
func (e *end) region(m *mmap.Map, connection int) []byte {
	return m.Bytes()[connection*e.size:][:e.size]
}

// alloc allocates memory for the data of all connections.
func (e *end) alloc(perm mmap.Permission) (*mmap.Map, error) {
	return mmap.Alloc(e.dev, max(e.connections*e.size, 1), perm)
}

// scatter makes a list of up to count buffers with room for n bytes, in m from off on. The
// order of the buffers is reversed in memory, so that the list is not contiguous. For n = 0 it
// returns nil.
func scatter(bufs *bufinv.Inventory, m *mmap.Map, off, n, count int) *bufinv.Buf {
	count = min(count, n)
	list := make([]*bufinv.Buf, count)
	end := off + n
	for i := range list {
		size := n*(i+1)/count - n*i/count
		end -= size
		list[i] = bufs.Target(m, end, size)
	}
	return bufinv.List(list...)
}

// load fills a list made by scatter with the next bytes of a stream.
func load(list *bufinv.Buf, p *stream) error {
	for b := list; b != nil; b = b.Next() {
		if err := b.SetData(0, b.Len()); err != nil {
			return err
		}
		p.fill(b.Bytes())
	}
	return nil
}

// unload checks that a list has the next bytes of a stream.
func unload(list *bufinv.Buf, p *stream) error {
	for b := list; b != nil; b = b.Next() {
		if err := p.check(b.Bytes()); err != nil {
			return err
		}
	}
	return nil
}
