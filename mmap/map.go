package mmap

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/internal/cverbs"
	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/verbs"
)

// Config describes the memory of a Map.
type Config struct {
	// Memory is the caller's memory, and stays the caller's. It is pinned until Close. Nil:
	// the library allocates Size bytes.
	Memory []byte
	// Size is the number of bytes to allocate, at least 1. It is zero with Memory or DMABuf.
	Size int
	// Pages are the pages of memory that New allocates. Zero: those of the system.
	Pages Pages
	// Prefault brings in all pages of memory that New allocates, so that later none has to be, and a lack of
	// memory is an error of New: it matches syscall.ENOMEM or EFAULT.
	Prefault bool
	// Near asks Linux for pages of the NUMA node of the device (verbs.DeviceAttr.NUMANode) while that has some. It
	// is for memory that New allocates, and has no effect where the node is not known.
	Near bool
	// DMABuf is memory of another device, such as a GPU. Such a Map has no Bytes. Nil: the Map
	// uses Memory, or allocates.
	DMABuf *DMABuf
	// Permissions of the Map. Zero: LocalReadOnly.
	Permissions Permission
	// PD is the protection domain to register in. Nil: the device's default.
	PD verbs.PD
	// OnFree is called by Close, on its goroutine, when no device can reach the memory any
	// more, just before allocated memory is unmapped. Its argument is the memory, or nil for a
	// dma-buf. OnFree must not keep memory that the library allocated. It is not called when
	// New fails. Nil: nothing is called.
	OnFree func(mem []byte)
	// UserData is the result of Map.UserData.
	UserData any
}

// DMABuf says which bytes of a dma-buf to use. Tasks and peers use addresses that begin with
// Offset. New fails with an error that matches ErrNotSupported where the device, or the
// exporter of the dma-buf, does not allow it, and ErrInvalid where FD is no dma-buf or is too
// short.
type DMABuf struct {
	FD     int    // its file descriptor, which may be closed after New
	Offset uint64 // bytes
	Length uint64 // bytes, at least 1
}

// Map is a range of memory, local or a peer's.
type Map struct {
	mem        []byte
	dmaBuf     *DMABuf      // with a descriptor of the Map's own
	free       func() error // unpins, unmaps or closes
	addr       uint64
	size       int
	perm       Permission
	remote     bool
	importedOn verbs.Device // the device given to Import
	rkey       uint32
	onFree     func([]byte)
	userData   any
	closeHooks []closeHook // of the registrations; mu protects them

	// users counts Hold. While it is negative, the registrations are changing or gone, and
	// Hold fails.
	users       atomic.Int64
	usersByKind [len(userKinds)]atomic.Int64 // users other than buffers
	closed      atomic.Bool
	regs        atomic.Pointer[[]registration]

	inventory atomic.Value
	mu        sync.Mutex // serialises what changes registrations
	exported  bool
	kept      []keptBy
}

// keptBy is a device that may still use the memory of a Map.
type keptBy struct {
	dev    verbs.Device
	reason error
}

// frozen is far enough below zero that no number of Hold calls makes it positive.
const frozen = math.MinInt64 / 2

type registration struct {
	dev  verbs.Device
	pd   verbs.PD
	mr   verbs.MR
	lkey uint32
}

// Alloc makes a Map of size bytes of zeroed memory, registered in the default protection
// domain of dev. The memory begins at a page, and lies outside the Go heap where the system
// allows (everywhere but on Windows and the like).
func Alloc(dev verbs.Device, size int, perm Permission) (*Map, error) {
	return New(dev, Config{Size: size, Permissions: perm})
}

// Register makes a Map of the caller's memory, registered in the default protection domain of
// dev. The memory is pinned, and must not be reused, until Close. If the memory cannot be
// accessed as perm asks, Register fails with an error that matches syscall.EFAULT.
func Register(dev verbs.Device, mem []byte, perm Permission) (*Map, error) {
	if len(mem) == 0 {
		return nil, fmt.Errorf("make memory map: %w: the memory is empty; give at least one byte", ErrRange)
	}
	return New(dev, Config{Memory: mem, Permissions: perm})
}

// New makes a Map and registers it with dev. Close of dev closes the Map too. Its errors match
// ErrInvalid, ErrRange and ErrPermission, or are those of the system and of the device.
func New(dev verbs.Device, cfg Config) (*Map, error) {
	m, err := create(dev, cfg)
	if err != nil {
		return nil, fmt.Errorf("make memory map: %w", err)
	}
	return m, nil
}

func create(dev verbs.Device, cfg Config) (*Map, error) {
	if dev == nil {
		return nil, fmt.Errorf("%w: no device is given; open one first", ErrInvalid)
	}
	if err := cfg.Permissions.validate(); err != nil {
		return nil, err
	}
	m := &Map{mem: cfg.Memory, perm: cfg.Permissions, onFree: cfg.OnFree, userData: cfg.UserData}
	var err error
	switch {
	case cfg.DMABuf != nil && (cfg.Memory != nil || cfg.Size != 0):
		return nil, fmt.Errorf("%w: both a dma-buf and other memory or a size are given; leave one out", ErrInvalid)
	case (cfg.Pages != SystemPages || cfg.Prefault || cfg.Near) && (cfg.Memory != nil || cfg.DMABuf != nil):
		return nil, fmt.Errorf("%w: Pages, Prefault and Near are for memory that is allocated, and other memory is given", ErrInvalid)
	case cfg.DMABuf != nil:
		err = m.useDMABuf(*cfg.DMABuf)
	case cfg.Memory == nil && cfg.Size < 1:
		return nil, fmt.Errorf("%w: the size is %d bytes; give at least 1", ErrRange, cfg.Size)
	case cfg.Memory == nil:
		m.mem, m.free, err = allocateFor(dev, &cfg)
	case cfg.Size != 0:
		return nil, fmt.Errorf("%w: both memory and a size are given; leave one out", ErrInvalid)
	case len(cfg.Memory) == 0:
		return nil, fmt.Errorf("%w: the memory is empty; give at least one byte", ErrRange)
	default:
		m.free = pin(cfg.Memory)
	}
	if err != nil {
		return nil, err
	}
	if m.dmaBuf == nil {
		m.size = len(m.mem)
	}
	pd := cfg.PD
	if pd == nil {
		pd = dev.DefaultPD()
	}
	if pd == nil {
		return nil, errors.Join(fmt.Errorf("%w: the device has no protection domain; open the device first", ErrInvalid), m.free())
	}
	if err := m.register(dev, pd); err != nil {
		return nil, errors.Join(err, m.free())
	}
	m.addCloseHook(dev)
	return m, nil
}

// closeHook is the function of a Map that a device calls before it is closed.
type closeHook struct {
	dev    verbs.Device
	remove func() // undoes OnClose
}

// addCloseHook adds a hook to a device, unless the Map has one there. The caller holds mu, or m
// is not shared yet.
func (m *Map) addCloseHook(dev verbs.Device) {
	closing, ok := dev.(verbs.ClosingDevice)
	if !ok || slices.ContainsFunc(m.closeHooks, func(o closeHook) bool { return o.dev == dev }) {
		return
	}
	m.closeHooks = append(m.closeHooks, closeHook{dev, closing.OnClose(func() error { return m.onDeviceClose(dev) })})
}

// removeCloseHook undoes addCloseHook. The caller holds mu.
func (m *Map) removeCloseHook(dev verbs.Device) {
	m.closeHooks = slices.DeleteFunc(m.closeHooks, func(o closeHook) bool {
		if o.dev == dev {
			o.remove()
		}
		return o.dev == dev
	})
}

// onDeviceClose closes the Map. If the Map is registered with other devices too, it only ends
// the registrations with this device, since no queue pair is left that could use them.
func (m *Map) onDeviceClose(dev verbs.Device) error {
	m.mu.Lock()
	m.kept = slices.DeleteFunc(m.kept, func(k keptBy) bool { return k.dev == dev })
	if !slices.ContainsFunc(m.registrations(), func(r registration) bool { return r.dev != dev }) {
		m.mu.Unlock()
		return m.Close()
	}
	defer m.mu.Unlock()
	if err := m.deregister(func(r registration) bool { return r.dev == dev }); err != nil {
		return err
	}
	m.removeCloseHook(dev)
	return nil
}

func (m *Map) registrations() []registration {
	if regs := m.regs.Load(); regs != nil {
		return *regs
	}
	return nil
}

// register adds a registration. The caller holds mu, or m is not shared yet.
func (m *Map) register(dev verbs.Device, pd verbs.PD) error {
	mr, err := m.region(dev, pd)
	if err != nil {
		return fmt.Errorf("register %d bytes with %s: %w", m.size, dev.Name(), err)
	}
	old := m.registrations()
	switch addr := mr.Addr(); {
	case m.dmaBuf != nil || addr == m.addr: // the Map has chosen the address of a dma-buf
	case len(old) == 0:
		m.addr = addr
	default:
		err := fmt.Errorf("register with %s: %w: it gives the memory the address %#x, but %s gives it %#x, and a map has one address; make another map for %s",
			dev.Name(), ErrNotSupported, addr, old[0].dev.Name(), m.addr, dev.Name())
		return errors.Join(err, mr.Close())
	}
	regs := append(old[:len(old):len(old)], registration{dev: dev, pd: pd, mr: mr, lkey: mr.LKey()})
	m.regs.Store(&regs)
	return nil
}

func (m *Map) region(dev verbs.Device, pd verbs.PD) (verbs.MR, error) {
	if m.dmaBuf == nil {
		return pd.RegMR(m.mem, m.perm.access())
	}
	if able, ok := pd.(verbs.DMABufPD); ok {
		return able.RegDMABufMR(verbs.DMABuf{FD: m.dmaBuf.FD, Offset: m.dmaBuf.Offset, Length: m.dmaBuf.Length, IOVA: m.addr}, m.perm.access())
	}
	return nil, fmt.Errorf("the driver of %s cannot register dma-bufs: %w", dev.Name(), ErrNotSupported)
}

// AddDevice registers the Map with a further device, in its default protection domain. It
// fails with ErrExists if the Map is already registered there, with ErrInUse while buffers
// hold the Map or once it is exported, with ErrRemote on an imported Map, and with
// ErrNotSupported if the device gives the memory another address, as simulated ones do.
func (m *Map) AddDevice(dev verbs.Device) error {
	if dev == nil {
		return fmt.Errorf("add device to memory map: %w: no device is given; open one first", ErrInvalid)
	}
	return m.add(dev, dev.DefaultPD())
}

// AddPD is AddDevice for a given protection domain.
func (m *Map) AddPD(pd verbs.PD) error {
	if pd == nil {
		return fmt.Errorf("add protection domain to memory map: %w: no protection domain is given", ErrInvalid)
	}
	return m.add(pd.Device(), pd)
}

func (m *Map) add(dev verbs.Device, pd verbs.PD) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.freeze(); err != nil {
		return fmt.Errorf("add %s to memory map: %w", dev.Name(), err)
	}
	defer m.unfreeze()
	for _, r := range m.registrations() {
		if r.pd == pd {
			return fmt.Errorf("add %s to memory map: %w in that protection domain", dev.Name(), ErrExists)
		}
	}
	if err := m.register(dev, pd); err != nil {
		return fmt.Errorf("add %s to memory map: %w", dev.Name(), err)
	}
	m.addCloseHook(dev)
	return nil
}

// RemoveDevice ends all registrations with dev. It fails with ErrNotRegistered if there are
// none, and otherwise like AddDevice.
func (m *Map) RemoveDevice(dev verbs.Device) error {
	if dev == nil {
		return fmt.Errorf("remove device from memory map: %w: no device is given", ErrInvalid)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.freeze(); err != nil {
		return fmt.Errorf("remove %s from memory map: %w", dev.Name(), err)
	}
	defer m.unfreeze()
	before := len(m.registrations())
	if err := m.deregister(func(r registration) bool { return r.dev == dev }); err != nil {
		return fmt.Errorf("remove %s from memory map: %w", dev.Name(), err)
	}
	if len(m.registrations()) == before {
		return fmt.Errorf("remove %s from memory map: %w with it", dev.Name(), ErrNotRegistered)
	}
	m.removeCloseHook(dev)
	return nil
}

// freeze makes Hold fail until unfreeze, while the registrations change. It fails while the
// Map is held. The caller holds mu.
func (m *Map) freeze() error {
	switch {
	case m.closed.Load():
		return fmt.Errorf("it is %w", ErrClosed)
	case m.remote:
		return fmt.Errorf("it %w; only its owner registers it", ErrRemote)
	case m.exported:
		return fmt.Errorf("%w: the map has been exported; add and remove devices before Export", ErrInUse)
	}
	return m.freezeUsers()
}

func (m *Map) freezeUsers() error {
	if len(m.kept) > 0 {
		return fmt.Errorf("%w by %s: %w", ErrInUse, m.kept[0].dev.Name(), m.kept[0].reason)
	}
	if !m.users.CompareAndSwap(0, frozen) {
		return fmt.Errorf("%w: %s; free or close them first", ErrInUse, m.usersText())
	}
	return nil
}

func (m *Map) unfreeze() { m.users.Add(-frozen) }

// deregister ends the registrations that match. A registration that the device refuses to end
// stays.
func (m *Map) deregister(match func(registration) bool) error {
	var left []registration
	var errs []error
	for _, r := range m.registrations() {
		if !match(r) {
			left = append(left, r)
			continue
		}
		if err := r.mr.Close(); err != nil {
			left = append(left, r)
			errs = append(errs, fmt.Errorf("deregister %d bytes from %s: %w", m.size, r.dev.Name(), err))
		}
	}
	m.regs.Store(&left)
	return errors.Join(errs...)
}

// Renew makes the Map as if it were new: it has other keys, so that peers with the old ones reach the memory
// no more, and zeroes the memory. It fails while the Map is held. If a device refuses, the Map can only be
// closed.
func (s forFriends) Renew() error {
	m := s.Map
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed.Load() {
		return fmt.Errorf("renew memory map: it is %w", ErrClosed)
	}
	if err := m.freezeUsers(); err != nil {
		return fmt.Errorf("renew memory map: %w", err)
	}
	defer m.unfreeze()
	for _, r := range m.registrations() {
		if err := m.renew(r); err != nil {
			return fmt.Errorf("renew memory map of %d bytes on %s: %w", m.size, r.dev.Name(), err)
		}
	}
	clear(m.mem)
	return nil
}

// renew gives a registration other keys. The caller holds mu.
func (m *Map) renew(r registration) error {
	if able, ok := r.mr.(cverbs.MR); ok {
		if err := able.Reregister(cverbs.MRChange{NewKey: true}); err != nil {
			return err
		}
		regs := slices.Clone(m.registrations())
		regs[slices.Index(regs, r)].lkey = r.mr.LKey()
		m.regs.Store(&regs)
		return nil
	}
	if err := m.deregister(func(o registration) bool { return o == r }); err != nil {
		return err
	}
	return m.register(r.dev, r.pd)
}

// Hold counts one more user, such as a buffer. Until the matching Release, Close and changes
// of the registrations fail with ErrInUse. Hold fails with ErrClosed on a closed Map.
func (s forFriends) Hold() error {
	m := s.Map
	if m.users.Add(1) > 0 {
		return nil
	}
	m.users.Add(-1)
	if m.closed.Load() {
		return errHoldClosed
	}
	return errHoldFrozen
}

// Keep makes Close, and changes of the registrations, fail until the device is closed, because
// the device may still use the memory. The error matches ErrInUse and the reason. It is for
// packages of contexts.
func (s forFriends) Keep(dev verbs.Device, reason error) {
	m := s.Map
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed.Load() || m.remote || slices.ContainsFunc(m.kept, func(k keptBy) bool { return k.dev == dev }) {
		return
	}
	m.kept = append(m.kept, keptBy{dev, reason})
}

// userKinds are the users of a Map other than buffers.
var userKinds = [...]struct{ one, many string }{
	friend.BufferPool:   {"buffer pool uses it", "buffer pools use it"},
	friend.MemoryWindow: {"memory window is bound to it", "memory windows are bound to it"},
}

// HoldFor is Hold for an object other than a buffer, which errors then name.
func (s forFriends) HoldFor(h friend.MapUser) error {
	err := s.Hold()
	if err == nil {
		s.usersByKind[h].Add(1)
	}
	return err
}

// ReleaseFor undoes one HoldFor.
func (s forFriends) ReleaseFor(h friend.MapUser) error {
	err := s.Release()
	if err == nil {
		s.usersByKind[h].Add(-1)
	}
	return err
}

// usersText says what holds the Map.
func (m *Map) usersText() string {
	var parts []string
	buffers := m.users.Load()
	for h := range userKinds {
		n := m.usersByKind[h].Load()
		buffers -= n
		switch {
		case n == 1:
			parts = append(parts, "1 "+userKinds[h].one)
		case n > 1:
			parts = append(parts, fmt.Sprintf("%d %s", n, userKinds[h].many))
		}
	}
	switch {
	case buffers == 1:
		parts = append(parts, "1 buffer uses it")
	case buffers > 1:
		parts = append(parts, fmt.Sprintf("%d buffers use it", buffers))
	}
	return strings.Join(parts, ", ")
}

// Inventory returns the result of the first call of make for this Map, which the Map keeps. Only
// package bufinv uses it, for the buffers of a Map.
func (x forFriends) Inventory(make func() any) any {
	m := x.Map
	s := m.inventory.Load()
	if s == nil && make != nil {
		if made := make(); made != nil {
			m.inventory.CompareAndSwap(nil, made) // else another goroutine was first
		}
		s = m.inventory.Load()
	}
	return s
}

// Release undoes one Hold. Without one it fails with ErrNotHeld.
func (s forFriends) Release() error {
	m := s.Map
	for {
		n := m.users.Load()
		if n <= 0 {
			return errNotHeld
		}
		if m.users.CompareAndSwap(n, n-1) {
			return nil
		}
	}
}

// Close ends all registrations, calls OnFree, and unmaps or unpins the memory. It fails with
// ErrInUse while buffers, pools of buffers or memory windows hold the Map, and names them.
// While a failed device may still use the memory, the error matches ErrMemoryKept too. If a
// device refuses to end a registration, the Map stays open and Close may be tried again. On an
// imported Map, Close only ends its use here. Closing again does nothing. The device that the
// Map was made on calls Close when it is closed itself.
func (m *Map) Close() error {
	ended, err := m.end()
	if err != nil {
		return fmt.Errorf("close memory map: %w", err)
	}
	if !ended {
		return nil
	}
	for _, o := range m.closeHooks { // they do not change any more
		o.remove()
	}
	// Called without the lock, because OnFree may call methods of the Map.
	if m.onFree != nil {
		m.onFree(m.mem)
	}
	if m.free == nil {
		return nil
	}
	if err := m.free(); err != nil {
		return fmt.Errorf("close memory map: %w", err)
	}
	return nil
}

// end reports whether this call closed the Map.
func (m *Map) end() (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed.Load() {
		return false, nil
	}
	if err := m.freezeUsers(); err != nil {
		return false, err
	}
	if !m.remote {
		if err := m.deregister(func(registration) bool { return true }); err != nil {
			m.unfreeze()
			return false, err
		}
	}
	m.closed.Store(true)
	return true, nil
}
