package cm

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/internal/quota"
	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/verbs"
)

// ListenParams are the parameters of [Manager.Listen].
type ListenParams struct {
	Service Service
	// Addr is the device's address to listen at; the zero value: all.
	Addr netip.Addr
	// Transport: RC, UC, or UD for SIDR.
	Transport verbs.QPType
	// Backlog limits the handshakes in progress of one address, from the REQ to the RTU, or from
	// a SIDR_REQ to the application's reply. All addresses together have twice Backlog places; an
	// address may take one while it holds fewer than are free. The IPv6 addresses of a /64 network
	// count as one. Requests beyond it are dropped, and the peer repeats them. Default: 1,024.
	Backlog int
	// MTU is the largest path MTU of a connection. 0: Config.MTU.
	MTU verbs.MTU
	// Value belongs to the caller.
	Value any
}

// Listener accepts requests for a service.
type Listener struct {
	Value    any
	manager  *Manager
	key      listenerKey
	params   ListenParams
	halfOpen quota.Places[netip.Addr] // by the peer's quota.Network
	closed   bool
}

// Listen starts to accept requests. A service can have one listener at each address and one
// for all addresses; a request goes to the listener of its address first.
func (m *Manager) Listen(p ListenParams) (*Listener, error) {
	setDefault(&p.Backlog, defaultBacklog)
	key := listenerKey{service: p.Service.ID()}
	where := "at all addresses"
	if p.Addr.IsValid() && !p.Addr.IsUnspecified() {
		key.address = verbs.GIDFromAddr(p.Addr)
		where = "at " + p.Addr.String()
	}
	switch {
	case p.Service.Port == 0:
		return nil, fmt.Errorf("listen %s: the port is 0, must be from 1 to 65535: %w", where, verbs.ErrInvalid)
	case p.Transport < verbs.RC || p.Transport > verbs.UD:
		return nil, fmt.Errorf("listen for %v %s: the transport is %v, must be RC, UC or UD: %w", p.Service, where, p.Transport, verbs.ErrInvalid)
	case p.MTU != 0 && !p.MTU.Valid():
		return nil, fmt.Errorf("listen for %v %s: the MTU is %d, must be 0, 256, 512, 1024, 2048 or 4096: %w", p.Service, where, p.MTU, verbs.ErrInvalid)
	case p.Backlog < 0:
		return nil, fmt.Errorf("listen for %v %s: the backlog is %d, must be positive, or 0 for the default of %d: %w", p.Service, where, p.Backlog, defaultBacklog, verbs.ErrInvalid)
	case m.closed:
		return nil, fmt.Errorf("listen for %v %s: %w", p.Service, where, verbs.ErrClosed)
	case m.listeners[key] != nil:
		return nil, fmt.Errorf("listen for %v %s: the device already has a listener for it; close that listener or use another port: %w", p.Service, where, verbs.ErrInUse)
	}
	l := &Listener{Value: p.Value, manager: m, key: key, params: p}
	m.listeners[key] = l
	return l, nil
}

// Close stops listening. Requests whose event has not been taken are rejected as if there were
// no listener. The others can still be accepted, and established connections stay. Closing
// again does nothing.
func (l *Listener) Close(now time.Duration) {
	if l.closed {
		return
	}
	l.closed = true
	m := l.manager
	delete(m.listeners, l.key)
	m.noteEnded(l.key, now)
	var waiting []Event
	for e := range m.events.All() {
		if e.Listener == l {
			waiting = append(waiting, e)
		}
	}
	for _, e := range waiting {
		switch {
		case e.Type == EventSIDRRequest:
			e.Request.sendReply(&mad.SIDRREP{Status: mad.SIDRNotSupported})
		case e.Conn.state == StateREQReceived:
			e.Conn.sendREJ(mad.MessageREQ, verbs.CMRejectInvalidServiceID, nil, nil)
			e.Conn.remove()
		}
	}
}

// listenerFor returns the listener for a service ID at an address, or nil. IDs that do not belong to
// RDMA CM have none.
func (m *Manager) listenerFor(service uint64, address verbs.GID) *Listener {
	if l := m.listeners[listenerKey{service, address}]; l != nil {
		return l
	}
	return m.listeners[listenerKey{service: service}]
}

// admit counts a handshake of a peer with a listener, and reports false if a limit is reached.
func (m *Manager) admit(l *Listener, peer verbs.GID) bool {
	source := quota.Network(peer.Addr())
	switch {
	case !l.halfOpen.Fits(source, 2*l.params.Backlog):
		m.counters.BacklogFull++
	case !m.halfOpen.Fits(source, m.config.MaxHalfOpen):
		m.counters.HalfOpenFull++
	default:
		l.halfOpen.Take(source)
		m.halfOpen.Take(source)
		return true
	}
	return false
}

// unadmit undoes admit.
func (m *Manager) unadmit(l *Listener, peer verbs.GID) {
	source := quota.Network(peer.Addr())
	l.halfOpen.Release(source)
	m.halfOpen.Release(source)
}
