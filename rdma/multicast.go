package rdma

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/verbs"
)

// MulticastConfig says how to join a multicast group.
type MulticastConfig struct {
	// SendOnly: messages are sent to the group and not taken from it.
	SendOnly bool
	// HopLimit is that of the IP header of messages to the group. Zero: 1 on RoCE, so that no
	// router passes them on; on InfiniBand that of the network's record of the group.
	HopLimit uint8
	// OnLost is called with the reason if the network takes the group away after it was
	// joined; the context has left it by then. Nil: the context fails with the reason.
	OnLost func(error)
}

// MulticastGroup is a multicast group that a context of UD is in. It belongs to the goroutine
// that drives the engine.
type MulticastGroup struct {
	ctx        *Datagrams
	addr       netip.Addr
	cfg        MulticastConfig
	done       func(*MulticastGroup, error) // nil: it was called
	membership verbs.CMMulticast            // nil: left
	attached   bool
	path       verbs.AddressAttr // of messages to the group
	peer       *Peer
}

// JoinMulticast joins a multicast group, an IPv4 or IPv6 address as the context's own is,
// through the device's connection manager (rdma_join_multicast(3)). done is called once, on
// the engine's goroutine, inside Progress, with the group or an error. What is sent to the
// group's Peer goes to all members. Messages of the group come like all others, with the group
// in the DGID of their GRH. The error matches ErrNoRoute, ErrMismatch if DatagramsConfig.QKey
// is not that of the group (DefaultQKey, except on InfiniBand), or ErrFlushed when the context
// stops.
//
// Every member gets a copy of each message: other contexts and processes of the machine too,
// and the sender itself, as on adapters. A Peer whose Addr equals EndpointAddr is this
// endpoint.
//
// It is legal in Starting and Running. Errors match ErrInvalid for an address that is not a
// group of the network's kind, or that was joined already, and ErrNotSupported where the
// transport service or the device has no multicast.
func (c *Datagrams) JoinMulticast(group string, cfg MulticastConfig, done func(g *MulticastGroup, err error)) error {
	op := "join " + group
	if err := c.control.Owned(op); err != nil {
		return err
	}
	if err := c.control.Require(op, pe.Starting, pe.Running); err != nil {
		return err
	}
	addr, err := c.multicastAddr(group)
	switch {
	case err != nil:
	case done == nil:
		err = fmt.Errorf("%w: no function is given", ErrInvalid)
	case c.phase != phaseUp:
		err = fmt.Errorf("%w: the context is stopping", ErrFlushed)
	case c.endpoint.groups[addr] != nil:
		err = fmt.Errorf("%w: the context is a member already", ErrInvalid)
	default:
		err = c.manager.use()
	}
	if err == nil {
		err = c.joinMulticast(&MulticastGroup{ctx: c, addr: addr, cfg: cfg, done: done})
	}
	if err != nil {
		return fmt.Errorf("rdma: %s with context %q: %w", op, c.set.Name, err)
	}
	return nil
}

// multicastAddr checks the address of a group.
func (c *Datagrams) multicastAddr(group string) (netip.Addr, error) {
	if c.set.Transport != verbs.UD {
		return netip.Addr{}, fmt.Errorf("%w: only UD has multicast, and DatagramsConfig.Transport is %v", ErrNotSupported, c.set.Transport)
	}
	addr, err := netip.ParseAddr(group)
	addr = addr.Unmap()
	entry := &c.port.State().GID
	if own := entry.GID.Addr(); err != nil || !addr.IsMulticast() || entry.Type == verbs.GIDRoCEv2 && addr.Is4() != own.Is4() {
		return netip.Addr{}, fmt.Errorf("%w: %q is not a multicast address of the endpoint's family; give an address in 224.0.0.0/4 for IPv4, or in ff00::/8 for IPv6; the endpoint has %v", ErrInvalid, group, own)
	}
	return addr.WithZone(""), nil
}

func (c *Datagrams) joinMulticast(g *MulticastGroup) error {
	m := &c.manager
	cm, ok := m.cm.(verbs.MulticastCM)
	if _, attaches := c.endpoint.lane.QP().(verbs.MulticastQP); !ok || !attaches {
		return fmt.Errorf("%w: %s does not support multicast", ErrNotSupported, c.dev.Name())
	}
	join := verbs.CMJoin{Group: g.addr, SendOnly: g.cfg.SendOnly}
	join.Local = c.port.IP()
	membership, err := cm.JoinMulticast(join)
	if err != nil {
		return err
	}
	g.membership = membership
	m.groups[membership] = g
	c.endpoint.groups[g.addr] = g
	return nil
}

// event handles an event of the membership.
func (g *MulticastGroup) event(ev *verbs.CMEvent) {
	switch ev.Type {
	case verbs.CMMulticastJoined:
		if g.done == nil {
			return
		}
		if err := g.joined(ev); err != nil {
			g.end(err)
			return
		}
		done := g.done
		g.done = nil
		done(g, nil)
	case verbs.CMMulticastFailed:
		g.end(ev.Err)
	case verbs.CMDeviceRemoved:
		g.end(fmt.Errorf("%w: %s was removed", ErrDevice, g.ctx.dev.Name()))
	}
}

// joined takes the group into use.
func (g *MulticastGroup) joined(ev *verbs.CMEvent) error {
	c := g.ctx
	s := c.set
	if qkey := ev.Param.QKey; qkey != s.qkey && !g.cfg.SendOnly {
		return fmt.Errorf("%w: the group has the Q_Key %#x, but DatagramsConfig.QKey is %#x", ErrMismatch, qkey, s.qkey)
	}
	g.path = ev.Address
	own := &c.port.State().GID
	if own.Type == verbs.GIDRoCEv2 || g.cfg.HopLimit != 0 {
		g.path.HopLimit = g.cfg.HopLimit // the kernel's connection manager sets 64
	}
	g.path.SGIDIndex, g.path.Port = own.Index, s.Path.Port
	s.putPathFields(&g.path)
	if !g.cfg.SendOnly {
		if err := c.endpoint.lane.QP().(verbs.MulticastQP).AttachMulticast(g.path.DGID, g.path.DLID); err != nil {
			return err
		}
		g.attached = true
	}
	g.peer, _ = c.addPeer(EndpointAddr{GID: g.path.DGID, QPN: verbs.MulticastQPN})
	g.peer.qkey, g.peer.lid, g.peer.group = ev.Param.QKey, g.path.DLID, g
	return nil
}

// end leaves a group that cannot be joined, or is lost, and tells the program.
func (g *MulticastGroup) end(err error) {
	if g.membership == nil {
		return
	}
	c := g.ctx
	if failed := g.leave(); failed != nil {
		c.control.Log().Debug().Err(failed).Stringer("group", g.addr).Msg("failed to leave a multicast group")
	}
	if done := g.done; done != nil {
		g.done = nil
		done(nil, fmt.Errorf("rdma: join %v with context %q: %w", g.addr, c.set.Name, err))
		return
	}
	err = fmt.Errorf("rdma: context %q has lost the multicast group %v: %w", c.set.Name, g.addr, err)
	if g.cfg.OnLost != nil {
		g.cfg.OnLost(err)
		return
	}
	c.control.Fail(err)
}

// leave undoes the join, even if that failed midway.
func (g *MulticastGroup) leave() error {
	if g.membership == nil {
		return nil
	}
	c, membership := g.ctx, g.membership
	g.membership = nil
	delete(c.manager.groups, membership)
	delete(c.endpoint.groups, g.addr)
	var errs []error
	if g.attached {
		g.attached = false
		errs = append(errs, c.endpoint.lane.QP().(verbs.MulticastQP).DetachMulticast(g.path.DGID, g.path.DLID))
	}
	errs = append(errs, membership.Close())
	if g.peer != nil {
		c.forget(g.peer)
	}
	return errors.Join(errs...)
}

// leaveGroups leaves all groups, before the queue pair is destroyed.
func (d *datagramEndpoint) leaveGroups() {
	for _, addr := range slices.SortedFunc(maps.Keys(d.groups), netip.Addr.Compare) {
		g := d.groups[addr]
		done := g.done
		g.done = nil
		if err := g.leave(); err != nil {
			d.ctx.control.Log().Warn().Err(err).Stringer("group", g.addr).Msg("failed to leave a multicast group")
		}
		if done != nil {
			c := d.ctx
			c.manager.runOnEngine(func() {
				done(nil, fmt.Errorf("rdma: join %v with context %q: %w: the context is stopping", addr, c.set.Name, ErrFlushed))
			})
		}
	}
}

// Leave leaves the group: no more messages come from it, and its Peer is not to be used
// any more. Tasks under way go on. Leaving again does nothing; the context leaves its groups
// when it stops.
func (g *MulticastGroup) Leave() error {
	op := "leave " + g.addr.String()
	if err := g.ctx.control.Owned(op); err != nil {
		return err
	}
	if err := g.leave(); err != nil {
		return fmt.Errorf("rdma: %s with context %q: %w", op, g.ctx.set.Name, err)
	}
	return nil
}

// Peer stands for all members of the group: each gets the messages sent to it.
func (g *MulticastGroup) Peer() *Peer { return g.peer }

// Addr is the address of the group.
func (g *MulticastGroup) Addr() netip.Addr { return g.addr }

// String names the group.
func (g *MulticastGroup) String() string { return "multicast group " + g.addr.String() }
