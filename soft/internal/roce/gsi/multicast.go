package gsi

import (
	"fmt"
	"net/netip"

	"github.com/verbena-rdma/verbena/soft/internal/roce/cm"
	"github.com/verbena-rdma/verbena/verbs"
)

// membership implements verbs.CMMulticast.
type membership struct {
	manager *Manager
	index   int // index of the endpoint
	addr    netip.Addr
	leave   func() error // nil: there is nothing to leave
	closed  bool
}

// JoinMulticast implements verbs.MulticastCM.
func (c *Manager) JoinMulticast(p verbs.CMJoin) (verbs.CMMulticast, error) {
	addr, local := p.Group.Unmap().WithZone(""), p.Local.Unmap().WithZone("")
	op := fmt.Sprintf("join %v", addr)
	g, err := c.lock(op)
	defer g.cfg.Lock.Unlock()
	if err != nil {
		return nil, err
	}
	index, err := g.cfg.Groups.GroupEndpoint(addr)
	if err == nil && local.IsValid() && !local.IsUnspecified() {
		index, err = g.endpointFor(local, addr)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	m := &membership{manager: c, index: index, addr: addr}
	c.memberships[m] = c.nextSerial()
	// Join here and not in the background, so that the group's socket is in the network
	// namespace of the caller.
	m.leave, err = g.cfg.Groups.JoinGroup(addr, index, p.SendOnly)
	c.background(func() { m.report(err) })
	return m, nil
}

// report reports the outcome of the join, on a goroutine of its own.
func (m *membership) report(err error) {
	g := m.manager.services
	g.cfg.Lock.Lock()
	defer g.cfg.Lock.Unlock()
	if m.closed || m.manager.closed {
		return
	}
	if err != nil {
		m.manager.handle(verbs.CMEvent{Type: verbs.CMMulticastFailed, Multicast: m, Err: fmt.Errorf("join %v: %w", m.addr, err)})
		return
	}
	m.manager.handle(verbs.CMEvent{
		Type: verbs.CMMulticastJoined, Multicast: m,
		Address: verbs.AddressAttr{DGID: verbs.GIDFromAddr(m.addr), SGIDIndex: m.index, Port: 1, HopLimit: 1},
		Param:   verbs.CMParam{QPN: verbs.MulticastQPN, QKey: cm.QKeyUDP},
	})
}

// Close implements verbs.CMMulticast.
func (m *membership) Close() error {
	g := m.manager.services
	g.cfg.Lock.Lock()
	defer g.cfg.Lock.Unlock()
	return m.end()
}

// end leaves the group.
func (m *membership) end() error {
	m.closed = true
	delete(m.manager.memberships, m)
	if m.leave == nil {
		return nil
	}
	leave := m.leave
	m.leave = nil
	if err := leave(); err != nil {
		return fmt.Errorf("leave %v: %w", m.addr, err)
	}
	return nil
}
