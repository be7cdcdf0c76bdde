package mmap

import (
	"fmt"
	"math"
)

// useDMABuf uses a dma-buf as the memory of the Map. It duplicates the descriptor, for devices
// that are added later.
func (m *Map) useDMABuf(b DMABuf) error {
	if b.Length == 0 || b.Length > math.MaxInt || b.Offset > math.MaxInt64-b.Length {
		return fmt.Errorf("%w: %d bytes from offset %d of a dma-buf are asked for", ErrRange, b.Length, b.Offset)
	}
	fd, err := duplicate(b.FD)
	if err != nil {
		return fmt.Errorf("keep the dma-buf of file descriptor %d: %w", b.FD, err)
	}
	b.FD = fd
	m.dmaBuf, m.addr, m.size = &b, b.Offset, int(b.Length)
	m.free = func() error { return release(fd) }
	return nil
}
