//go:build linux && cgo && verbs

package rdmacm

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/verbena-rdma/verbena/verbs"
)

const defaultBacklog = 1024

// listener implements verbs.CMListener. It has an event channel of its own. It does not read
// the channel while backlog requests wait for the application. The kernel then queues up to
// backlog more, and drops the rest.
type listener struct {
	manager *manager
	raw     rawID
	events  *watchedChannel
	kind    verbs.QPType
	addr    netip.AddrPort
	backlog int
	pending int // requests that were reported, but not yet accepted or rejected
	closed  bool
}

// Listen implements verbs.CM.
func (m *manager) Listen(p verbs.CMListen) (verbs.CMListener, error) {
	op := fmt.Sprintf("listen on %v", p.Addr)
	backlog := p.Backlog
	if backlog == 0 {
		backlog = defaultBacklog
	}
	addr := netip.AddrPortFrom(p.Addr.Addr().Unmap(), p.Addr.Port())
	all := !addr.Addr().IsValid() || addr.Addr().IsUnspecified()
	err := checkService(p.Type)
	switch {
	case err != nil:
	case backlog < 0:
		err = fmt.Errorf("the backlog is %d; it must be positive, or 0 for %d: %w", backlog, defaultBacklog, verbs.ErrInvalid)
	case !all:
		err = m.checkLocal(addr.Addr())
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	if err := m.lock(op); err != nil {
		m.mu.Unlock()
		return nil, err
	}
	l, err := m.listen(p, addr, all, backlog)
	m.mu.Unlock()
	if err != nil {
		if l != nil {
			l.discard()
		}
		return nil, listenError(op, m.dev.Name(), err)
	}
	return l, nil
}

// listen makes a listener. The lock is held. If it returns both a listener and an error, the
// caller has to discard the listener.
func (m *manager) listen(p verbs.CMListen, addr netip.AddrPort, all bool, backlog int) (l *listener, err error) {
	l = &listener{manager: m, kind: p.Type, backlog: backlog}
	// The goroutine takes the lock before it does anything.
	l.events, err = m.watch("requests to "+p.Addr.String(), func(channel) bool { return l.lockAndHandleNext() })
	if err != nil {
		return nil, err
	}
	if all {
		// The unspecified address of IPv6 includes that of IPv4.
		l.raw, err = l.bind(netip.AddrPortFrom(netip.IPv6Unspecified(), addr.Port()))
		if errors.Is(err, syscall.EAFNOSUPPORT) {
			l.raw, err = l.bind(netip.AddrPortFrom(netip.IPv4Unspecified(), addr.Port()))
		}
	} else {
		l.raw, err = l.bind(m.withZone(addr))
	}
	if err != nil {
		l.closed = true
		return l, err
	}
	l.addr = netip.AddrPortFrom(addr.Addr(), l.raw.route().local.Port())
	m.listeners[l.raw] = l
	return l, nil
}

// bind makes an ID that listens.
func (l *listener) bind(addr netip.AddrPort) (rawID, error) {
	raw, err := l.events.newID(l.kind)
	if err != nil {
		return nil, callError("rdma_create_id", err)
	}
	if err = raw.bind(addr); err != nil {
		err = callError("rdma_bind_addr", err)
	} else if err = raw.listen(l.backlog); err != nil {
		err = callError("rdma_listen", err)
	}
	if err != nil {
		raw.destroy()
		return nil, err
	}
	return raw, nil
}

// Addr implements verbs.CMListener.
func (l *listener) Addr() netip.AddrPort { return l.addr }

// Close implements verbs.CMListener.
func (l *listener) Close() error {
	m := l.manager
	if err := m.lock("close listener"); err != nil || l.closed {
		m.mu.Unlock()
		return nil // already closed, or closed with its manager
	}
	l.closed = true
	delete(m.listeners, l.raw)
	m.mu.Unlock()
	l.discard()
	return nil
}

// discard releases the resources of a closed listener.
func (l *listener) discard() {
	l.events.stop()
	if l.raw != nil {
		l.raw.destroy()
	}
	l.events.destroy()
}

func (l *listener) lockAndHandleNext() bool {
	l.manager.mu.Lock()
	defer l.manager.mu.Unlock()
	return l.handleNext()
}

// handleNext handles one event, if there is one and room for a request.
func (l *listener) handleNext() bool {
	m := l.manager
	var e rawEvent
	if m.closed || l.closed || l.pending >= l.backlog || !next(l.events, &e) {
		return false
	}
	switch e.kind {
	case eventConnectRequest:
		l.request(&e)
	case eventAddrChange:
		m.handle(verbs.CMEvent{Type: verbs.CMAddressChanged, Listener: l})
	case eventDeviceRemoval:
		m.handle(verbs.CMEvent{Type: verbs.CMDeviceRemoved, Listener: l})
	}
	return true
}

// request reports a request.
func (l *listener) request(e *rawEvent) {
	m, raw := l.manager, e.id
	r := raw.route()
	switch {
	case r.device != m.dev.Name():
		// A listener at the unspecified address also gets the requests to other devices.
		_ = raw.reject(nil)
		raw.destroy()
		return
	case raw.migrate(m.main.channel) != nil:
		raw.destroy() // this rejects the request
		return
	}
	id := m.newID(raw, l.kind)
	id.listener, id.phase = l, phaseRequested
	id.offered = e.param
	id.setEndpoints(&r, r.remote)
	l.pending++
	id.report(verbs.CMEvent{Type: verbs.CMConnectRequest, Listener: l, Param: e.param})
}

// answered makes room for another request.
func (l *listener) answered() {
	l.pending--
	for l.handleNext() {
	}
}
