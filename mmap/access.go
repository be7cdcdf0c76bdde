package mmap

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/verbena-rdma/verbena/verbs"
)

// Made in advance, because the hot path returns them.
var (
	errHoldClosed = fmt.Errorf("use memory map: it is %w", ErrClosed)
	errHoldFrozen = fmt.Errorf("use memory map: %w: devices are being added or removed", ErrInUse)
	errNotHeld    = fmt.Errorf("release memory map: it is %w: more releases than holds", ErrNotHeld)
	errKeyClosed  = fmt.Errorf("use memory map: it is %w", ErrClosed)
	errKeyRemote  = fmt.Errorf("use memory map as local memory: it %w; give memory of this host", ErrRemote)
	errKeyNone    = fmt.Errorf("use memory map: %w in this protection domain: call AddDevice or AddPD first", ErrNotRegistered)
)

// Bytes returns the memory, or nil if the memory is a peer's or a dma-buf's, or the Map is
// closed.
func (m *Map) Bytes() []byte {
	if m.closed.Load() {
		return nil
	}
	return m.mem
}

// Find returns the offset of a slice in the memory of the Map, for bufinv.Source and Target, where a
// program has slices of the memory in place of offsets:
//
//	off, err := m.Find(header)
//	src := bufinv.Source(m, off, len(header))
//
// The error matches ErrRange if a byte of the slice is not in the Map, ErrInvalid if the slice is
// empty or the memory is a dma-buf's, ErrRemote on an imported Map, and ErrClosed. Find may be called
// from any goroutine, and allocates nothing unless it fails.
func (m *Map) Find(slice []byte) (off int, err error) {
	switch {
	case m.remote:
		return 0, fmt.Errorf("find a slice in memory map: it %w; only its owner has slices of it", ErrRemote)
	case m.closed.Load():
		return 0, fmt.Errorf("find a slice in memory map: it is %w", ErrClosed)
	case len(slice) == 0 || len(m.mem) == 0:
		return 0, fmt.Errorf("find a slice in %v: %w: the slice is empty, or the memory is a dma-buf's", m, ErrInvalid)
	}
	first := uintptr(unsafe.Pointer(unsafe.SliceData(m.mem)))
	at := uintptr(unsafe.Pointer(unsafe.SliceData(slice)))
	if room := len(m.mem) - len(slice); room < 0 || at < first || at-first > uintptr(room) {
		return 0, fmt.Errorf("find a slice in %v: %w: its %d bytes are not all in the memory of the Map; give a slice of Map.Bytes, or of the memory that was registered", m, ErrRange, len(slice))
	}
	return int(at - first), nil
}

// Addr is the address of the first byte, as tasks and peers use it. The device gives it: all
// but simulated devices give the address that the memory has in this program.
func (m *Map) Addr() uint64 { return m.addr }

// String describes the memory, without its content or keys.
func (m *Map) String() string {
	kind := "memory map"
	if m.remote {
		kind = "memory map of a peer"
	}
	return fmt.Sprintf("%s, %d bytes from %#x, %v", kind, m.size, m.addr, m.perm)
}

// Len is the number of bytes.
func (m *Map) Len() int { return m.size }

// Permissions returns the permissions of the Map, which the peer has granted if it is imported.
func (m *Map) Permissions() Permission { return m.perm }

// Remote reports whether the Map is imported: the memory is a peer's.
func (m *Map) Remote() bool { return m.remote }

// UserData returns Config.UserData.
func (m *Map) UserData() any { return m.userData }

// LKey is the local key of the memory in a protection domain. It fails with ErrNotRegistered
// where the Map is not registered, with ErrRemote on an imported Map and with ErrClosed on a
// closed one.
func (m *Map) LKey(pd verbs.PD) (uint32, error) {
	if m.remote {
		return 0, errKeyRemote
	}
	regs := m.registrations()
	for i := range regs {
		if regs[i].pd == pd {
			return regs[i].lkey, nil
		}
	}
	if m.closed.Load() {
		return 0, errKeyClosed
	}
	return 0, errKeyNone
}

// RKey is the remote key of an imported Map. It is zero for other Maps, which have a key for
// each device.
func (m *Map) RKey() uint32 { return m.rkey }

// Devices returns the devices that the Map can be used with: those it is registered with or,
// for an imported Map, the device given to Import.
func (s forFriends) Devices() []verbs.Device {
	m := s.Map
	if m.remote {
		return []verbs.Device{m.importedOn}
	}
	var devs []verbs.Device
	for _, r := range m.registrations() {
		if !slices.Contains(devs, r.dev) {
			devs = append(devs, r.dev)
		}
	}
	return devs
}
