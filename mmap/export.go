package mmap

import (
	"fmt"
	"math"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/internal/wirecode"
	"github.com/verbena-rdma/verbena/verbs"
)

// Export returns a descriptor of the memory for peers that reach it through dev, in binary
// form (descriptor.Armor makes it text). It holds the remote key of the default protection
// domain, or else of the domain in which the Map is registered on dev.
//
// It fails with ErrPermission unless the Map has a remote permission, with ErrNotRegistered if
// the Map is not registered with dev, and with ErrRemote on an imported Map. After Export,
// devices can be neither added nor removed. Close makes the descriptors void.
func (m *Map) Export(dev verbs.Device) ([]byte, error) {
	if dev == nil {
		return nil, fmt.Errorf("export memory map: %w: no device is given", ErrInvalid)
	}
	def := dev.DefaultPD()
	return m.export(func(r registration) bool { return r.pd == def }, func(r registration) bool { return r.dev == dev })
}

// ExportPD is Export for peers whose queue pairs are in the given protection
// domain.
func (m *Map) ExportPD(pd verbs.PD) ([]byte, error) {
	if pd == nil {
		return nil, fmt.Errorf("export memory map: %w: no protection domain is given", ErrInvalid)
	}
	return m.export(func(r registration) bool { return r.pd == pd })
}

// export makes the descriptor with the key that remoteKey finds.
func (m *Map) export(matches ...func(registration) bool) ([]byte, error) {
	rkey, err := m.remoteKey(matches...)
	if err != nil {
		return nil, fmt.Errorf("export memory map: %w", err)
	}
	b, err := encode(fields{m.addr, uint64(m.size), rkey, m.perm & remoteRights})
	if err != nil {
		return nil, fmt.Errorf("export memory map: %w", err)
	}
	return b, nil
}

// fields are the fields of a descriptor.
type fields struct {
	addr, size uint64
	rkey       uint32
	perm       Permission
}

func (f *fields) code(c *wirecode.Coder) {
	c.Uint64(&f.addr)
	c.Uint64(&f.size)
	c.Uint32(&f.rkey)
	wirecode.Int(c, &f.perm, 4)
}

func encode(f fields) ([]byte, error) {
	var c wirecode.Coder
	f.code(&c)
	payload, err := c.Payload()
	if err != nil {
		return nil, err
	}
	return descriptor.Encode(descriptor.MemoryMap, payload)
}

// ExportKey is ExportPD for callers that put the remote key into a descriptor of their own.
func (m *Map) ExportKey(pd verbs.PD) (rkey uint32, err error) {
	if pd == nil {
		return 0, fmt.Errorf("export key of memory map: %w: no protection domain is given", ErrInvalid)
	}
	if rkey, err = m.remoteKey(func(r registration) bool { return r.pd == pd }); err != nil {
		return 0, fmt.Errorf("export key of memory map: %w", err)
	}
	return rkey, nil
}

// remoteKey returns the remote key of the first registration that satisfies the first match,
// or else the next match. From then on the Map is exported.
func (m *Map) remoteKey(matches ...func(registration) bool) (rkey uint32, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed.Load():
		return 0, fmt.Errorf("it is %w", ErrClosed)
	case m.remote:
		return 0, fmt.Errorf("it %w; only its owner exports it", ErrRemote)
	case m.perm&remoteRights == 0:
		return 0, fmt.Errorf("%w: it has %v; make it with RemoteRead, RemoteWrite or RemoteAtomic", ErrPermission, m.perm)
	}
	for _, match := range matches {
		for _, r := range m.registrations() {
			if match(r) {
				m.exported = true
				return r.mr.RKey(), nil
			}
		}
	}
	return 0, fmt.Errorf("%w with this device or protection domain; call AddDevice or AddPD first", ErrNotRegistered)
}

// Import makes a Map of a peer's memory from the descriptor, binary or armored, that the peer
// exported, for use with dev. Such a Map has an address and a length, and can be the remote
// side of a task. It has no bytes, cannot be exported, and no devices can be added.
//
// Its errors match those of package descriptor, and descriptor.ErrFormat where the descriptor
// is whole but has impossible values.
func Import(dev verbs.Device, desc []byte) (*Map, error) {
	if dev == nil {
		return nil, fmt.Errorf("import memory map: %w: no device is given; open one first", ErrInvalid)
	}
	payload, err := descriptor.Decode(descriptor.MemoryMap, desc)
	if err != nil {
		return nil, fmt.Errorf("import memory map: %w", err)
	}
	c := wirecode.ReadFrom(payload)
	var f fields
	f.code(c)
	if err := c.Done(); err != nil {
		return nil, fmt.Errorf("import memory map: %w", err)
	}
	if err := checkRemote(f.addr, f.size, f.perm); err != nil {
		return nil, fmt.Errorf("import memory map: %w: %w; export it again", descriptor.ErrFormat, err)
	}
	return &Map{addr: f.addr, size: int(f.size), rkey: f.rkey, perm: f.perm, remote: true, importedOn: dev}, nil
}

func checkRemote(addr, size uint64, perm Permission) error {
	switch {
	case size == 0 || size > math.MaxInt:
		return fmt.Errorf("its length is %d", size)
	case addr > math.MaxUint64-(size-1):
		return fmt.Errorf("%d bytes from address %#x exceed the address space", size, addr)
	case perm&remoteRights == 0 || perm&^remoteRights != 0:
		return fmt.Errorf("its permissions are %v", perm)
	}
	return nil
}

// FromKey makes a Map of a peer's memory from its address, length in bytes and remote key, for
// use with dev. It is for peers that do not use this SDK, and pass these values by a protocol
// of their own. perm is what the peer allows: RemoteRead, RemoteWrite, RemoteAtomic; if the
// peer allows less, tasks fail. The Map is otherwise like one from Import. FromKey fails with
// ErrInvalid for values that no memory can have.
func FromKey(dev verbs.Device, addr uint64, length int, rkey uint32, perm Permission) (*Map, error) {
	const op = "memory map from a key"
	if dev == nil {
		return nil, fmt.Errorf("%s: %w: no device is given; open one first", op, ErrInvalid)
	}
	if err := checkRemote(addr, uint64(max(length, 0)), perm); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", op, ErrInvalid, err)
	}
	return &Map{addr: addr, size: length, rkey: rkey, perm: perm, remote: true, importedOn: dev}, nil
}

// AsRemote returns the Map as a peer on the same device imports it from the descriptor of
// Export. It is for programs that are their own peer, and for tests. If the peer is on another
// device, use Export for the owner's device, and Import for the peer's. Closing m leaves the
// result open, with a key that the device refuses. Its errors are those of Export.
func (m *Map) AsRemote(dev verbs.Device) (*Map, error) {
	desc, err := m.Export(dev)
	if err != nil {
		return nil, fmt.Errorf("make the remote view of memory map: %w", err)
	}
	return Import(dev, desc)
}
