package syncevent

import (
	"encoding/binary"
	"fmt"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/internal/wirecode"
	"github.com/verbena-rdma/verbena/verbs"
)

// byteOrder is the order of a value's bytes, as encoded in descriptors.
type byteOrder uint8

const (
	littleEndian byteOrder = 1
	bigEndian    byteOrder = 2
)

func hostOrder() byteOrder {
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		return littleEndian
	}
	return bigEndian
}

// Export returns a descriptor of the event for peers, in binary form (descriptor.Armor makes
// it text). It holds the key to the event's memory (with Config.Buf, to all of the buffer's
// memory map), and is as secret as that memory. Peers may read the value and, with
// PublishRemote, change it.
//
// It fails with ErrLocal without a device, with ErrRemote on an imported event, and with
// ErrClosed. Close makes the descriptors void.
func (e *Event) Export() ([]byte, error) {
	if err := e.begin("export", oneCall); err != nil {
		return nil, err
	}
	defer e.leave(oneCall)
	if e.m == nil || e.pd == nil {
		return nil, fmt.Errorf("export %v: %w: it was made without a device; give one to New", e, ErrLocal)
	}
	rkey, err := e.m.ExportKey(e.pd)
	if err != nil {
		return nil, fmt.Errorf("export %v: %w", e, err)
	}
	b, err := encode(fields{addr: e.addr, rkey: rkey, order: hostOrder(), publishers: e.publishers, atomics: e.atomics})
	if err != nil {
		return nil, fmt.Errorf("export %v: %w", e, err)
	}
	return b, nil
}

// Import makes a handle of a peer's event from the descriptor, binary or armored, that the
// peer exported, for use with dev. The handle is for the sync event tasks of package rdma; its
// methods that work on the value fail with ErrRemote.
//
// Its errors match ErrInvalid and those of package descriptor, and descriptor.ErrFormat for
// values that no exporter writes.
func Import(dev verbs.Device, desc []byte) (*Event, error) {
	if dev == nil {
		return nil, fmt.Errorf("import sync event: %w: no device is given; open one first", ErrInvalid)
	}
	f, err := decode(desc)
	if err != nil {
		return nil, fmt.Errorf("import sync event: %w", err)
	}
	return &Event{
		remote: true, dev: dev, addr: f.addr, rkey: f.rkey, swapped: f.order != hostOrder(),
		publishers: f.publishers, atomics: f.atomics,
	}, nil
}

// fields are the fields of a descriptor.
type fields struct {
	addr       uint64
	rkey       uint32
	order      byteOrder
	publishers Publishers
	atomics    bool
}

func (f *fields) code(c *wirecode.Coder) {
	c.Uint64(&f.addr)
	c.Uint32(&f.rkey)
	wirecode.Int(c, &f.order, 1)
	wirecode.Int(c, &f.publishers, 1)
	c.Bool(&f.atomics)
}

func encode(f fields) ([]byte, error) {
	var c wirecode.Coder
	f.code(&c)
	payload, err := c.Payload()
	if err != nil {
		return nil, err
	}
	return descriptor.Encode(descriptor.SyncEvent, payload)
}

func decode(desc []byte) (fields, error) {
	payload, err := descriptor.Decode(descriptor.SyncEvent, desc)
	if err != nil {
		return fields{}, err
	}
	c := wirecode.ReadFrom(payload)
	var f fields
	f.code(c)
	if err := c.Done(); err != nil {
		return fields{}, err
	}
	switch {
	case f.addr == 0 || f.addr%wordSize != 0:
		err = fmt.Errorf("%w: its address is %#x", descriptor.ErrFormat, f.addr)
	case f.order != littleEndian && f.order != bigEndian:
		err = fmt.Errorf("%w: its byte order is %d", descriptor.ErrFormat, f.order)
	case f.publishers == 0 || f.publishers&^bothPublish != 0:
		err = fmt.Errorf("%w: its publishers are %v", descriptor.ErrFormat, f.publishers)
	case f.atomics && !f.publishers.Has(PublishRemote):
		err = fmt.Errorf("%w: it allows peers to add to the value, but not to set it", descriptor.ErrFormat)
	default:
		return f, nil
	}
	return fields{}, fmt.Errorf("%w; export it again", err)
}
