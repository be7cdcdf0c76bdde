package mmap

import (
	"fmt"
	"math"
)

// useDMABuf uses a dma-buf as the memory of the Map. It duplicates the descriptor, for devices
// that are added later.
func (m *Map) useDMABuf(b DMABuf) error {
	if b.Length == 0 || b.Length > math.MaxInt || b.Offset > math.MaxInt64-b.Length {
		return fmt.Errorf("%w: a dma-buf cannot have %d bytes from offset %d", ErrRange, b.Length, b.Offset)
	}
	fd, err := duplicate(b.FD)
	if err != nil {
		return fmt.Errorf("duplicate file descriptor %d of the dma-buf: %w", b.FD, err)
	}
	b.FD = fd
	m.dmaBuf, m.addr, m.size = &b, b.Offset, int(b.Length)
	m.free = func() error { return release(fd) }
	return nil
}
