//go:build linux && cgo && verbs

package rdmacm

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/verbs"
)

// membership implements verbs.CMMulticast. It has an identifier of its own. Its fields are
// guarded by the manager's lock.
type membership struct {
	manager  *manager
	raw      rawID
	group    netip.Addr
	sendOnly bool
	joining  bool // rdma_join_multicast has been called
	mld      int  // the socket that has joined the group by MLD; zero: none
}

// JoinMulticast implements verbs.MulticastCM.
func (m *manager) JoinMulticast(p verbs.CMJoin) (verbs.CMMulticast, error) {
	group, local := p.Group.Unmap(), p.Local.Unmap()
	op := fmt.Sprintf("join %v", group)
	if !group.IsMulticast() {
		return nil, fmt.Errorf("%s: the address is not a multicast group: %w", op, verbs.ErrInvalid)
	}
	switch {
	case !local.IsValid() || local.IsUnspecified():
		local = netip.IPv6Unspecified()
		if group.Is4() {
			local = netip.IPv4Unspecified()
		}
	case local.Is4() != group.Is4():
		return nil, fmt.Errorf("%s: %v has another address family: %w", op, local, verbs.ErrInvalid)
	default:
		if err := m.checkLocal(local); err != nil {
			return nil, fmt.Errorf("%s: %w", op, err)
		}
	}
	if err := m.lock(op); err != nil {
		m.mu.Unlock()
		return nil, err
	}
	defer m.mu.Unlock()
	raw, err := m.main.newID(verbs.UD)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, callError("rdma_create_id", err))
	}
	g := &membership{manager: m, raw: raw, group: m.withZone(netip.AddrPortFrom(group, 0)).Addr(), sendOnly: p.SendOnly}
	if err := raw.resolveAddr(m.withZone(netip.AddrPortFrom(local, 0)), netip.AddrPortFrom(g.group, multicastPort), resolveTimeout); err != nil {
		raw.destroy()
		return nil, fmt.Errorf("%s: %w", op, m.notResolved("rdma_resolve_addr", err))
	}
	m.groups[raw] = g
	return g, nil
}

// multicastPort fills the port in the address of a group. Packets do not carry it.
const multicastPort = 1

// event handles an event.
func (g *membership) event(e *rawEvent) {
	own := g.manager.dev.Name()
	switch e.kind {
	case eventAddrResolved:
		if r := g.raw.route(); r.device != own {
			g.fail(fmt.Errorf("%w: the route uses device %q with address %v, but the connection manager is that of device %q: give a local address", verbs.ErrNoRoute, r.device, r.local.Addr(), own))
			return
		}
		err := g.raw.join(g.group, g.sendOnly)
		switch {
		case err == nil:
			g.joining = true
		case errors.Is(err, errNotSupported) && g.group.Is6():
			g.joinByMLD()
		default:
			g.fail(callError("rdma_join_multicast", err))
		}
	case eventAddrError:
		g.fail(unresolved("rdma_resolve_addr", syscall.Errno(-e.status), own))
	case eventMulticastJoin:
		g.manager.handle(verbs.CMEvent{Type: verbs.CMMulticastJoined, Multicast: g, Param: e.param, Address: e.address})
	case eventMulticastError:
		g.fail(callError("rdma_join_multicast", syscall.Errno(-e.status)))
	case eventDeviceRemoval:
		g.manager.handle(verbs.CMEvent{Type: verbs.CMDeviceRemoved, Multicast: g})
	case eventAddrChange:
		g.manager.handle(verbs.CMEvent{Type: verbs.CMAddressChanged, Multicast: g})
	}
}

// errNotSupported is ENOTSUPP, an errno of the kernel that package syscall does not have.
const errNotSupported = syscall.Errno(524)

// joinByMLD joins an IPv6 group on RoCEv2, which the kernel's connection manager does not
// support. It joins with a socket, so that the network and the kernel pass the group's packets to
// the adapter. The adapter delivers them to the attached queue pairs.
func (g *membership) joinByMLD() {
	r := g.raw.route()
	if !g.sendOnly {
		if err := g.openMLD(); err != nil {
			g.fail(fmt.Errorf("join with a socket on interface %s: %w", g.group.Zone(), err))
			return
		}
	}
	g.manager.handle(verbs.CMEvent{
		Type: verbs.CMMulticastJoined, Multicast: g,
		Address: verbs.AddressAttr{DGID: verbs.GIDFromAddr(g.group.WithZone("")), SGIDIndex: g.manager.gidIndex(&r), Port: r.port, HopLimit: 1},
		Param:   verbs.CMParam{QPN: verbs.MulticastQPN, QKey: udpQKey},
	})
}

func (g *membership) openMLD() error {
	sock, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	mreq := unix.IPv6Mreq{Multiaddr: g.group.As16(), Interface: uint32(zoneIndex(g.group.Zone()))}
	if err := unix.SetsockoptIPv6Mreq(sock, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, &mreq); err != nil {
		unix.Close(sock)
		return err
	}
	g.mld = sock
	return nil
}

func (g *membership) fail(err error) {
	g.manager.handle(verbs.CMEvent{Type: verbs.CMMulticastFailed, Multicast: g, Err: fmt.Errorf("join %v: %w", g.group, err)})
}

// Close implements verbs.CMMulticast.
func (g *membership) Close() error {
	err := g.manager.lock("leave")
	defer g.manager.mu.Unlock()
	if err != nil || g.manager.groups[g.raw] != g {
		return nil // already closed, or closed with its manager
	}
	delete(g.manager.groups, g.raw)
	return g.leave()
}

func (g *membership) leave() (err error) {
	if g.joining {
		if err = g.raw.leave(g.group); err != nil {
			err = fmt.Errorf("leave %v: %w", g.group, callError("rdma_leave_multicast", err))
		}
	}
	if g.mld != 0 {
		unix.Close(g.mld)
	}
	g.raw.destroy()
	return err
}
