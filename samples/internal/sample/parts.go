package sample

import (
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
)

const (
	// MaxMessage is the most bytes that the programs send with one task. Both ends
	// of a send have to divide the data alike, and the kernel's rxe takes no
	// longer messages.
	MaxMessage = 8 << 20

	maxSGE = 16
)

// Part is the part of the data that one task moves: Len bytes from Off on.
type Part struct{ Off, Len int }

// Parts divides n bytes into parts of at most limit bytes, a task each, and says
// so if there are several. No bytes are one part: a message may be empty.
func (s *Session) Parts(n, limit int) []Part {
	parts := divide(n, limit)
	if len(parts) > 1 {
		s.Log.Info().Msgf("%d bytes are more than the %d of one task: there are %d tasks", n, limit, len(parts))
	}
	return parts
}

func divide(n, limit int) []Part {
	parts := []Part{{0, min(n, limit)}}
	for off := limit; off < n; off += limit {
		parts = append(parts, Part{off, min(n-off, limit)})
	}
	return parts
}

// Tasks is how many parts Parts makes of n bytes.
func Tasks(n, limit int) int { return len(divide(n, limit)) }

// Chain makes a list of n buffers with room for a part, in m at its offset. In
// memory the buffers lie in reverse order, so that the list really is scattered.
// For a part of no bytes it is nil: no buffer.
func Chain(bufs *bufinv.Inventory, m *mmap.Map, part Part, n int) *bufinv.Buf {
	n = min(n, part.Len)
	list := make([]*bufinv.Buf, n)
	end := part.Off + part.Len
	for i := range n {
		size := part.Len*(i+1)/n - part.Len*i/n
		end -= size
		list[i] = bufs.Target(m, end, size)
	}
	return bufinv.List(list...)
}

// Load is Chain with data in it, which is copied there.
func Load(bufs *bufinv.Inventory, m *mmap.Map, part Part, n int, data []byte) (*bufinv.Buf, error) {
	list := Chain(bufs, m, part, n)
	if err := list.Append(data[part.Off:][:part.Len]); err != nil {
		_ = list.Free() // the error at hand says more
		return nil, err
	}
	return list, nil
}
