//go:build linux && cgo && verbs

package rdmacm

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/verbena-rdma/verbena/cgo/internal/poll"
	"github.com/verbena-rdma/verbena/verbs"
)

// manager implements verbs.CM.
type manager struct {
	dev    verbs.Device
	lib    library
	limits verbs.DeviceAttr
	handle func(verbs.CMEvent)
	// main is the channel for the events of all IDs. Each listener has a channel of its own.
	main *watchedChannel

	destroyer destroyer // of IDs of connections

	// Events are taken, and handle is called, with the lock held. So an object that was closed
	// under the lock reports nothing afterwards.
	mu        sync.Mutex
	closed    bool
	ids       map[rawID]*connectionID
	listeners map[rawID]*listener
	groups    map[rawID]*membership
}

// watchedChannel is a channel with a goroutine that waits for its events.
type watchedChannel struct {
	channel
	stop func() // must be called without the lock
}

func open(dev verbs.Device, handle func(verbs.CMEvent), lib library) (verbs.CM, error) {
	op := "open connection manager of " + dev.Name()
	if handle == nil {
		return nil, fmt.Errorf("%s: handle is nil: %w", op, verbs.ErrInvalid)
	}
	if dev.Driver() != "ibverbs" {
		return nil, fmt.Errorf("%s: librdmacm cannot use devices of driver %s: %w", op, dev.Driver(), verbs.ErrNotSupported)
	}
	limits, err := dev.Query()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	m := &manager{
		dev: dev, lib: lib, limits: limits, handle: handle,
		ids: make(map[rawID]*connectionID), listeners: make(map[rawID]*listener), groups: make(map[rawID]*membership),
	}
	// The goroutine may run before main is set.
	m.mu.Lock()
	defer m.mu.Unlock()
	m.main, err = m.watch("connections", func(ch channel) bool { return m.handleNext(ch) })
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	return m, nil
}

// watch makes a channel. When the channel has events, it calls take until take returns false.
func (m *manager) watch(what string, take func(channel) bool) (*watchedChannel, error) {
	ch, err := m.lib.newChannel()
	if err != nil {
		return nil, channelError(err)
	}
	stop, err := poll.Watch(ch.fd(), what, m.dev.Name(), func() {
		for take(ch) {
		}
	})
	if err != nil {
		ch.destroy()
		return nil, err
	}
	return &watchedChannel{ch, stop}, nil
}

// handleNext handles one event of the main channel, if there is one.
func (m *manager) handleNext(ch channel) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	var e rawEvent
	if m.closed || !next(ch, &e) {
		return false
	}
	if id := m.ids[e.id]; id != nil {
		id.event(&e)
	} else if g := m.groups[e.id]; g != nil {
		g.event(&e)
	}
	return true
}

// lock takes the lock for a call on an open manager. The caller unlocks.
func (m *manager) lock(op string) error {
	m.mu.Lock()
	if m.closed {
		return fmt.Errorf("%s: the connection manager of %s: %w", op, m.dev.Name(), verbs.ErrClosed)
	}
	return nil
}

// Close implements verbs.CM.
func (m *manager) Close() error {
	err := m.lock("close")
	if err != nil {
		m.mu.Unlock()
		return nil // already closed
	}
	m.closed = true
	m.mu.Unlock()

	// From here on, the goroutines and all calls find the manager closed, so no listener is
	// added or removed.
	m.main.stop()
	for _, l := range m.listeners {
		l.events.stop()
	}
	for raw := range m.ids {
		m.destroyer.destroy(raw)
	}
	m.destroyer.wait()
	for _, g := range m.groups {
		_ = g.leave() // if this fails, the kernel leaves the group when the ID is destroyed
	}
	for raw, l := range m.listeners {
		raw.destroy()
		l.events.destroy()
	}
	m.main.destroy()
	return nil
}

// gids returns the GID table of a port.
func (m *manager) gids(port int) []verbs.GIDEntry {
	list, _ := m.dev.GIDs(port) // a removed device has none
	return list
}

// addresses returns the addresses of the device.
func (m *manager) addresses() (list []netip.Addr) {
	for port := 1; port <= m.limits.Ports; port++ {
		for _, e := range m.gids(port) {
			if a := e.GID.Addr(); !slices.Contains(list, a) {
				list = append(list, a)
			}
		}
	}
	return list
}

// checkLocal refuses an address that the device does not have. IPoIB addresses are not in the
// GID table, so the kernel has to check those of a device on InfiniBand.
func (m *manager) checkLocal(addr netip.Addr) error {
	if own := m.addresses(); !slices.Contains(own, addr.WithZone("")) && !m.onInfiniBand() {
		return fmt.Errorf("the address does not belong to device %s, whose addresses are %v: %w", m.dev.Name(), own, verbs.ErrInvalid)
	}
	return nil
}

func (m *manager) onInfiniBand() bool {
	for port := 1; port <= m.limits.Ports; port++ {
		if p, err := m.dev.QueryPort(port); err == nil && p.LinkLayer == verbs.LinkInfiniBand {
			return true
		}
	}
	return false
}

// gidIndex returns the index of a route's GID in the table of its port. If the GID is there for
// several versions of RoCE, it returns that for RoCEv2, which librdmacm uses.
func (m *manager) gidIndex(r *route) int {
	index := 0
	for _, e := range m.gids(r.port) {
		if e.GID == r.sgid || e.GID == verbs.GIDFromAddr(r.local.Addr()) {
			index = e.Index
			if e.Type != verbs.GIDRoCEv1 {
				break
			}
		}
	}
	return index
}

// withZone adds the device's zone to a link-local address or a group without a zone.
func (m *manager) withZone(a netip.AddrPort) netip.AddrPort {
	addr := a.Addr()
	if !addr.Is6() || !addr.IsLinkLocalUnicast() && !addr.IsMulticast() || addr.Zone() != "" {
		return a
	}
	for port := 1; port <= m.limits.Ports; port++ {
		for _, e := range m.gids(port) {
			if e.Interface != "" {
				return netip.AddrPortFrom(addr.WithZone(e.Interface), a.Port())
			}
		}
	}
	return a
}

// zoneIndex returns the index of an interface; zero if there is none of that name.
func zoneIndex(zone string) int {
	if zone == "" {
		return 0
	}
	i, err := net.InterfaceByName(zone)
	if err != nil {
		return 0
	}
	return i.Index
}
