// Package buffers has the memory that a context makes for its own buffers: all of one size, in one
// piece, outside the Go heap where the system allows.
package buffers

import (
	"fmt"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/verbs"
)

// Buffers are buffers of one size. The zero value has none.
type Buffers struct {
	mem    *mmap.Map // nil: there are none
	first  verbs.SGE
	stride int
}

// Stride is the distance between buffers of size bytes that are aligned to a power of two.
func Stride(size, align int) int { return (size + align - 1) &^ (align - 1) }

// Open makes n buffers of size bytes, each aligned to a power of two. None are made if one of the
// numbers is zero. If Open fails, Close is called all the same.
func (b *Buffers) Open(pd verbs.PD, n, size, align int) (err error) {
	if n == 0 || size == 0 {
		return nil
	}
	b.stride = Stride(size, align)
	b.mem, err = mmap.New(pd.Device(), mmap.Config{Size: n * b.stride, Permissions: mmap.LocalReadWrite, PD: pd})
	if err != nil {
		return fmt.Errorf("make %d buffers of %d bytes: %w", n, size, err)
	}
	b.first = verbs.SGE{Addr: b.mem.Addr(), Length: uint32(size)}
	b.first.LKey, err = b.mem.LKey(pd)
	return err
}

// IsOpen reports whether there are buffers.
func (b *Buffers) IsOpen() bool { return b.mem != nil }

// SGE is the entry of a list of buffers for buffer i.
func (b *Buffers) SGE(i int) verbs.SGE {
	e := b.first
	e.Addr += uint64(i * b.stride)
	return e
}

// Bytes are the first n bytes of buffer i.
func (b *Buffers) Bytes(i, n int) []byte {
	at := i * b.stride
	return b.mem.Bytes()[at : at+n : at+n]
}

// Close frees the memory. If keep is set, the memory stays until the device is closed, which may
// still use it.
func (b *Buffers) Close(keep bool) error {
	m := b.mem
	*b = Buffers{}
	if m == nil || keep {
		return nil
	}
	return m.Close()
}
