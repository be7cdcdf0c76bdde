package buffers

import (
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/internal/friend"
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

	mu     sync.Mutex
	kept   []Exposed // renewed, for the next connections
	closed bool
}

// maxKept is of how many ended connections the memory is kept for the next ones: to map and register it
// takes longer than all else that a connection needs of the system. Each piece is too small for other
// processes to map it (minMemory of package local), so that a former peer cannot go on reading it.
const maxKept = 64

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

// NewBase returns memory that an ended connection has had, or else allocates it.
func (m *Memory) NewBase() (Base, error) {
	m.mu.Lock()
	for n := len(m.kept); n > 0; n = len(m.kept) {
		e := m.kept[n-1]
		m.kept = m.kept[:n-1]
		var err error
		if e.Key, err = e.ExportKey(m.pd); err == nil {
			m.mu.Unlock()
			m.held.Add(Smallest)
			return Base{e}, nil
		}
		_ = e.Close() // the device is closed
	}
	m.mu.Unlock()
	e, err := m.expose(Smallest)
	return Base{e}, err
}

// CloseBase releases the memory. The key that the peer has is void then.
func (m *Memory) CloseBase(b Base) error {
	m.held.Add(-Smallest)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || len(m.kept) == maxKept || b.Friends(friend.Package{}).Renew() != nil {
		return b.Close()
	}
	m.kept = append(m.kept, b.Exposed)
	return nil
}

// Close frees the memory that is kept, and keeps no other.
func (m *Memory) Close() (err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for _, e := range m.kept {
		err = errors.Join(err, e.Close())
	}
	m.kept = nil
	return err
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
