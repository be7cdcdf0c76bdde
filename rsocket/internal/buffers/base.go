package buffers

import (
	"encoding/binary"
	"errors"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/rsocket/internal/protocol"
	"github.com/verbena-rdma/verbena/verbs"
)

// Exposed is memory that the peer of one connection may write to.
type Exposed struct {
	*mmap.Map
	Key uint32 // for the peer
}

// Memory is the receive memory of all connections of a Stack. All methods may be called from any
// goroutine.
type Memory struct {
	device verbs.Device
	pd     verbs.PD
	growth atomic.Int64 // bytes left for buffers beside those that connections begin with
	held   atomic.Int64 // bytes of all connections
}

// NewMemory makes memory of which growth bytes at most are used for buffers beside those that
// connections begin with.
func NewMemory(dev verbs.Device, pd verbs.PD, growth int) *Memory {
	m := &Memory{device: dev, pd: pd}
	m.growth.Store(int64(growth))
	return m
}

// Held is the number of bytes that all connections have.
func (m *Memory) Held() int { return int(m.held.Load()) }

// expose allocates memory for the peer of one connection: no other has its key.
func (m *Memory) expose(size int) (e Exposed, err error) {
	if e.Map, err = mmap.Alloc(m.device, size, mmap.LocalReadWrite|mmap.RemoteWrite); err != nil {
		return e, err
	}
	if e.Key, err = e.ExportKey(m.pd); err != nil {
		return e, errors.Join(err, e.Close())
	}
	m.held.Add(int64(size))
	return e, nil
}

// fairShare is the part of what is left that one buffer may take, unless it is of the smallest size:
// so something is left for connections that begin to grow later.
const fairShare = 8

// take reserves memory for a buffer. It reports false if there is not enough.
func (m *Memory) take(size int) bool {
	for {
		left := m.growth.Load()
		allowed := left
		if size > Smallest {
			allowed /= fairShare
		}
		if int64(size) > allowed {
			return false
		}
		if m.growth.CompareAndSwap(left, left-int64(size)) {
			return true
		}
	}
}

// buffer allocates a buffer of a size, or of a smaller one if memory is short, or returns nil.
func (m *Memory) buffer(size int) (*Buffer, error) {
	for !m.take(size) {
		if size /= 2; size < Smallest {
			return nil, nil
		}
	}
	e, err := m.expose(size)
	if err != nil {
		m.growth.Add(int64(size))
		if size > Smallest { // the system or the device has no more
			return m.buffer(Smallest)
		}
		return nil, err
	}
	return &Buffer{Exposed: e, data: e.Bytes()}, nil
}

// closeBuffer releases a buffer. After an error it can be called again.
func (m *Memory) closeBuffer(b *Buffer) error {
	size := int64(b.Len())
	if err := b.Close(); err != nil {
		return err
	}
	m.growth.Add(size)
	m.held.Add(-size)
	return nil
}

// Entry is a part of the memory, for the peer.
func (e Exposed) Entry(offset, length int) protocol.Entry {
	return protocol.Entry{Addr: e.Addr() + uint64(offset), Key: e.Key, Length: uint32(length)}
}

// Base is the memory that a connection has from its beginning to its end: its target SGL, which the
// peer writes to; entries on their way to the peer's; and the first receive buffer, which is used
// again while there is no memory for others.
type Base struct{ Exposed }

const (
	ownSGL      = 0
	outgoing    = ownSGL + protocol.Entries*protocol.EntrySize
	firstBuffer = outgoing + protocol.Entries*protocol.EntrySize
)

// NewBase allocates the memory.
func (m *Memory) NewBase() (Base, error) {
	e, err := m.expose(Smallest)
	return Base{e}, err
}

// CloseBase releases the memory.
func (m *Memory) CloseBase(b Base) error {
	m.held.Add(-Smallest)
	return b.Close()
}

// SGL is the target SGL, for the peer: its length is the number of entries.
func (b Base) SGL() protocol.Entry { return b.Entry(ownSGL, protocol.Entries) }

// FirstBuffer is the first receive buffer.
func (b Base) FirstBuffer() *Buffer {
	return &Buffer{Exposed: b.Exposed, offset: firstBuffer, data: b.Bytes()[firstBuffer:]}
}

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
