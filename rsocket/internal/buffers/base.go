package buffers

import (
	"encoding/binary"
	"errors"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/rsocket/internal/protocol"
	"github.com/verbena-rdma/verbena/verbs"
)

// Exposed is memory that the peer of one connection may write to.
type Exposed struct {
	*mmap.Map
	Key uint32 // for the peer
}

// Expose allocates memory for the peer of one connection: no other has its key.
func Expose(dev verbs.Device, pd verbs.PD, size int) (e Exposed, err error) {
	if e.Map, err = mmap.Alloc(dev, size, mmap.LocalReadWrite|mmap.RemoteWrite); err != nil {
		return e, err
	}
	if e.Key, err = e.ExportKey(pd); err != nil {
		return e, errors.Join(err, e.Close())
	}
	return e, nil
}

// Entry is a part of the memory, for the peer.
func (e Exposed) Entry(offset, length int) protocol.Entry {
	return protocol.Entry{Addr: e.Addr() + uint64(offset), Key: e.Key, Length: uint32(length)}
}

// Base is the memory that a connection has from its beginning to its end: its target SGL, which the
// peer writes to; entries on their way to the peer's; and the first receive buffer.
type Base struct{ Exposed }

const (
	ownSGL      = 0
	outgoing    = ownSGL + protocol.Entries*protocol.EntrySize
	firstBuffer = outgoing + protocol.Entries*protocol.EntrySize
)

// NewBase allocates the memory.
func NewBase(dev verbs.Device, pd verbs.PD) (Base, error) {
	e, err := Expose(dev, pd, Smallest)
	return Base{e}, err
}

// SGL is the target SGL, for the peer: its length is the number of entries.
func (b Base) SGL() protocol.Entry { return b.Entry(ownSGL, protocol.Entries) }

// FirstBuffer is the first receive buffer, for the peer.
func (b Base) FirstBuffer() protocol.Entry { return b.Entry(firstBuffer, b.Len()-firstBuffer) }

// FirstData is the memory of the first receive buffer.
func (b Base) FirstData() []byte { return b.Bytes()[firstBuffer:] }

// Read returns an entry of the target SGL.
func (b Base) Read(index int) protocol.Entry {
	return protocol.DecodeEntry(b.Bytes()[ownSGL+index*protocol.EntrySize:], binary.NativeEndian)
}

// Put stores an entry for the peer's target SGL, in the peer's byte order, and returns its offset.
func (b Base) Put(index int, e protocol.Entry, order binary.ByteOrder) (offset int) {
	offset = outgoing + index*protocol.EntrySize
	e.Put(b.Bytes()[offset:], order)
	return offset
}
