package roce

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/verbena-rdma/verbena/soft/internal/roce/cm"
	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/soft/internal/roce/sharedport"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// joinGroups joins the processes that share port 4791 with others of their user, and claims a slot for the
// first shard. The first device at an address has 4791 as its own port; the others have one of their own
// besides. Where that fails, the device does without, as one that was opened with a port does.
func (d *Device) joinGroups() {
	d.groups, d.notShared = make([]*sharedport.Group, len(d.cfg.Addresses)), make([]error, len(d.cfg.Addresses))
	if d.net.Simulated() || slices.ContainsFunc(d.cfg.Addresses, func(a netip.AddrPort) bool { return a.Port() != 0 }) {
		return
	}
	unlock, err := sharedport.Lock()
	if err == nil {
		defer unlock()
		ctx, cancel := context.WithTimeout(context.Background(), sharedport.JoinTimeout)
		defer cancel()
		for i, a := range d.cfg.Addresses {
			d.groups[i], d.notShared[i] = sharedport.Join(ctx, link.Config{Addr: netip.AddrPortFrom(a.Addr(), wire.UDPPort), Interface: d.cfg.Interface})
		}
		d.main.slot, err = d.claimSlot(maxShards)
	}
	for _, g := range d.groups {
		if g != nil && err == nil {
			g.TakeRest(d.main.slot)
		}
	}
	if err != nil {
		d.leaveGroups()
		for i := range d.notShared {
			d.notShared[i] = cmp.Or(d.notShared[i], err)
		}
	}
}

func (d *Device) leaveGroups() {
	for _, g := range d.groups {
		if g != nil {
			g.Close()
		}
	}
	clear(d.groups)
}

// claimSlot claims the lowest of the first n slots that is free at all addresses, for a new shard.
func (d *Device) claimSlot(n int) (slot int, err error) {
	for slot := range n {
		if !d.ownsSlot(slot) && d.claim(slot) {
			return slot, nil
		}
	}
	return 0, fmt.Errorf("share UDP port %d: all %d slots are taken, usually by devices of this user; close one, or give this one an address of its own: %w", wire.UDPPort, n, verbs.ErrLimit)
}

func (d *Device) ownsSlot(slot int) bool {
	return slices.ContainsFunc(d.mu.list, func(s *shard) bool { return s.slot == slot })
}

func (d *Device) claim(slot int) bool {
	for i, g := range d.groups {
		if g != nil && !g.Claim(slot) {
			d.release(slot, d.groups[:i])
			return false
		}
	}
	return true
}

func (*Device) release(slot int, groups []*sharedport.Group) {
	for _, g := range groups {
		if g != nil {
			g.Release(slot)
		}
	}
}

// atStandardPort reports whether the endpoint's own port is 4791.
func (e *endpoint) atStandardPort() bool { return e.socket.Addr().Port() == wire.UDPPort }

// receiveFromSlot makes an endpoint with a port of its own receive what comes to the slot of its shard,
// too.
func (e *endpoint) receiveFromSlot() error {
	if e.group == nil {
		return nil
	}
	if !e.atStandardPort() {
		bound, err := e.group.Socket(e.shard.slot)
		if err == nil {
			err = e.socket.ReceiveFrom(bound)
		}
		if err != nil {
			return err
		}
	}
	return e.group.Use(e.shard.slot, e.socket.Addr().Port())
}

// NotShared returns why port 4791 at a GID does not lead to this device; nil: it does.
func (d *Device) NotShared(gidIndex int) error { return d.endpoints[gidIndex].NotShared() }

// NotShared implements gsi.Endpoint.
func (e *endpoint) NotShared() error {
	if e.group != nil || e.atStandardPort() {
		return nil
	}
	return cmp.Or(e.notShared, fmt.Errorf("the device has UDP port %d", e.socket.Addr().Port()))
}

// Listen implements gsi.Endpoint.
func (e *endpoint) Listen(s cm.Service) error {
	if e.group == nil {
		return e.NotShared()
	}
	return e.group.Listen(uint32(s.ID()), e.device.main.slot)
}

// Unlisten implements gsi.Endpoint.
func (e *endpoint) Unlisten(s cm.Service) {
	if e.group != nil {
		e.group.Unlisten(uint32(s.ID()), e.device.main.slot)
	}
}

// share opens a socket of another shard at the same address.
func (e *endpoint) share(s *shard) (_ *endpoint, err error) {
	bound := 0
	if e.group != nil && e.atStandardPort() {
		if bound, err = e.group.Socket(s.slot); err != nil {
			return nil, err
		}
	}
	socket, err := e.socket.Share(s.sockets, bound)
	if err != nil {
		return nil, err
	}
	other := newEndpoint(s, e.index, socket, e.entry)
	other.group = e.group
	if err := other.receiveFromSlot(); err != nil {
		_ = socket.Close()
		return nil, err
	}
	return other, nil
}

// steer steers packets to the sockets of the device's shards, and of the next one.
func (e *endpoint) steer(next *shard) error {
	if e.group != nil && e.atStandardPort() {
		return nil // the group does
	}
	var slots []int
	for _, s := range append(slices.Clip(e.device.mu.list), next) {
		slots = append(slots, s.slot)
	}
	return e.socket.Steer(slots)
}

// destination returns where a packet was sent to.
func (e *endpoint) destination(dg *link.Datagram) netip.AddrPort {
	own := e.socket.Addr()
	return netip.AddrPortFrom(own.Addr(), cmp.Or(dg.Port, own.Port()))
}

// Dials implements local.Endpoint. A device at another address may know this one by port 4791 and its
// slot only, as other hosts do, and would not find its queue pair for a packet from this port. So if
// that device has port 4791 too, it has to dial.
func (e *endpoint) Dials(device netip.AddrPort) bool {
	return e.group == nil || e.atStandardPort() || device.Port() != wire.UDPPort || slices.Contains(e.device.addresses(), device.Addr())
}

// neighbourPort returns the UDP port of the device that has queue pairs with such numbers at an address
// of this device, where it is reached alone: through shared memory, and from a known source. Zero: it is
// not known.
func (d *Device) neighbourPort(addr netip.Addr, qpn uint32) uint16 {
	slot := int(qpn & shardBits)
	for _, e := range d.endpoints {
		if e.group != nil && e.socket.Addr().Addr() == addr && !d.ownsSlot(slot) {
			return e.group.Port(slot)
		}
	}
	return 0
}
