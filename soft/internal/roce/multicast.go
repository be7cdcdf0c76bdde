package roce

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/verbena-rdma/verbena/soft/internal/roce/admission"
	"github.com/verbena-rdma/verbena/soft/internal/roce/ipheader"
	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// maxGroups is how many multicast groups a device can join. Each has a socket.
const maxGroups = 256

// group is a multicast group that the device has joined. Its packets go to UDP port 4791,
// whatever the device's own port is: other devices of the machine can be members too.
type group struct {
	addr         netip.AddrPort
	endpoint     *endpoint // whose socket has joined the group
	memberships  int       // of connection managers
	queuePairs   []*queuePair
	source       netip.AddrPort // of the last packet
	incomingFlow wire.Flow      // the flow from source
}

// maxGroups is how many groups the device can join: none if its sockets cannot.
func (d *Device) maxGroups() int {
	if d.endpoints[0].socket.Features().Groups {
		return maxGroups
	}
	return 0
}

// findOrJoinGroup returns a group, and joins it first if the device is not a member. The
// caller adds a membership or a queue pair.
func (d *Device) findOrJoinGroup(addr netip.Addr, e *endpoint) (*group, error) {
	if g := d.mu.groups[addr]; g != nil {
		return g, nil
	}
	if len(d.mu.groups) >= maxGroups {
		return nil, fmt.Errorf("device %s has joined %d multicast groups, its limit: %w", d.cfg.Name, maxGroups, verbs.ErrLimit)
	}
	g := &group{addr: netip.AddrPortFrom(addr, wire.UDPPort), endpoint: e}
	switch err := e.socket.Join(g.addr); {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%w: a program on this machine has UDP port %d at all addresses: %w", verbs.ErrInUse, wire.UDPPort, err)
	case errors.Is(err, errors.ErrUnsupported):
		return nil, fmt.Errorf("%w: %w", verbs.ErrNotSupported, err)
	case err != nil:
		return nil, err
	}
	if d.mu.groups == nil {
		d.mu.groups = make(map[netip.Addr]*group)
	}
	d.mu.groups[addr] = g
	return g, nil
}

// leaveIfEmpty leaves the group if it has no members any more.
func (g *group) leaveIfEmpty() error {
	d := g.endpoint.device
	if g.memberships > 0 || len(g.queuePairs) > 0 || d.mu.groups[g.addr.Addr()] != g {
		return nil
	}
	delete(d.mu.groups, g.addr.Addr())
	return g.endpoint.socket.Leave(g.addr)
}

// handleGroup handles a packet to a multicast group. Every attached queue pair gets a copy,
// also that of the sender, as on adapters: the group loops back.
func (e *endpoint) handleGroup(dg *link.Datagram) {
	d, p := e.device, &e.packet
	g := d.mu.groups[dg.Group]
	if g == nil || p.DestQP != verbs.MulticastQPN || p.Opcode.Service() != wire.ServiceUD || !admission.DefaultPartition(p.PKey) {
		d.main.mu.drops.wrongPeer++
		return
	}
	if dg.Src != g.source {
		g.source, g.incomingFlow = dg.Src, wire.NewFlow(dg.Src, g.addr)
	}
	if !g.incomingFlow.CheckICRC(dg.Data, uint16(dg.Segment)) {
		d.main.mu.drops.badICRC++
		return
	}
	if !d.admission.Senders.Admit(dg.Src, p.DETH.SrcQP) {
		d.main.mu.drops.wrongSource++
		return
	}
	d.main.mu.counters.ReceivedPackets++
	d.main.multicast.received++
	ipheader.PutGRH(&e.header, dg.Src.Addr(), dg.Group, dg.Header, len(dg.Data))
	port := admission.ReplyPort(dg.Src.Port())
	for _, q := range g.queuePairs {
		q.transport.ReceiveDatagram(p, &e.header, port)
	}
}

// AttachMulticast implements verbs.MulticastQP. LIDs have no meaning here.
func (q *queuePair) AttachMulticast(gid verbs.GID, _ uint16) error {
	op := fmt.Sprintf("attach queue pair %#x to %v", q.num, gid.Addr())
	d := q.pd.device
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := q.checkOpen(op); err != nil {
		return err
	}
	if q.init.Type != verbs.UD {
		return fmt.Errorf("%s: multicast groups need a UD queue pair, not %v: %w", op, q.init.Type, verbs.ErrInvalid)
	}
	e, err := d.multicastEndpoint(gid.Addr())
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	g, err := d.findOrJoinGroup(gid.Addr(), e)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	switch {
	case slices.Contains(g.queuePairs, q):
	case len(g.queuePairs) >= d.limits.groupMembers:
		return fmt.Errorf("%s: the group already has %d queue pairs, its limit: %w", op, len(g.queuePairs), verbs.ErrLimit)
	default:
		g.queuePairs = append(g.queuePairs, q)
		q.groups++
	}
	return nil
}

// DetachMulticast implements verbs.MulticastQP.
func (q *queuePair) DetachMulticast(gid verbs.GID, _ uint16) error {
	op := fmt.Sprintf("detach queue pair %#x from %v", q.num, gid.Addr())
	d := q.pd.device
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := q.checkOpen(op); err != nil {
		return err
	}
	g, i := d.mu.groups[gid.Addr()], -1
	if g != nil {
		i = slices.Index(g.queuePairs, q)
	}
	if i < 0 {
		return fmt.Errorf("%s: the queue pair is not attached: %w", op, verbs.ErrInvalid)
	}
	g.queuePairs = slices.Delete(g.queuePairs, i, i+1)
	q.groups--
	if err := g.leaveIfEmpty(); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

// multicastEndpoint chooses the endpoint for a group if the caller names none: the first of
// the group's address family and, if possible, of its scope. All belong to one network
// interface.
func (d *Device) multicastEndpoint(group netip.Addr) (*endpoint, error) {
	if !group.IsMulticast() {
		return nil, fmt.Errorf("%v is not a multicast address: %w", group, verbs.ErrInvalid)
	}
	for _, e := range d.endpoints {
		own := e.socket.Addr().Addr()
		if own.Is4() == group.Is4() && (own.Is4() || own.IsLinkLocalUnicast() == group.IsLinkLocalMulticast()) {
			return e, nil
		}
	}
	for _, e := range d.endpoints {
		if e.socket.Addr().Addr().Is4() == group.Is4() {
			return e, nil
		}
	}
	return nil, fmt.Errorf("none of the addresses of device %s, %v, has the address family of the group: %w", d.cfg.Name, d.addresses(), verbs.ErrInvalid)
}

// GroupEndpoint implements gsi.Groups.
func (d *Device) GroupEndpoint(group netip.Addr) (index int, err error) {
	e, err := d.multicastEndpoint(group)
	if err != nil {
		return 0, err
	}
	return e.index, nil
}

// JoinGroup implements gsi.Groups.
func (d *Device) JoinGroup(group netip.Addr, index int, sendOnly bool) (leave func() error, err error) {
	e := d.endpoints[index]
	if err := e.socket.CheckRoute(netip.AddrPortFrom(group, wire.UDPPort)); err != nil {
		return nil, fmt.Errorf("%w: the interface of %v has no route to multicast groups (the loopback interface has none for IPv6); use another interface: %w",
			verbs.ErrNoRoute, e.Addr().Addr(), err)
	}
	if sendOnly {
		return nil, nil
	}
	g, err := d.findOrJoinGroup(group, e)
	if err != nil {
		return nil, err
	}
	g.memberships++
	return func() error {
		g.memberships--
		return g.leaveIfEmpty()
	}, nil
}
