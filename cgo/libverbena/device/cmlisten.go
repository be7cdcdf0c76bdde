//go:build linux && cgo && verbs

package main

// #include "device.h"
// #include "callbacks.h"
import "C"

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/verbena-rdma/verbena/internal/hostaddr"
	"github.com/verbena-rdma/verbena/internal/routes"
	"github.com/verbena-rdma/verbena/verbs"
)

// listener is a listener at one address, or at all addresses, of a device.
type listener struct {
	verbs.CMListener
	id     *cmID
	device *openDevice
}

// close stops accepting requests.
func (l *listener) close() {
	_ = l.Close()
	l.device.cm.forget(l.CMListener)
}

//export vd_cm_listen
func vd_cm_listen(handle C.uint32_t, backlog C.int) C.int {
	return onID(handle, func(id *cmID) error {
		if id.state == cmIdle {
			if err := id.bind(netip.AddrPortFrom(netip.IPv4Unspecified(), 0)); err != nil {
				return err
			}
		}
		if id.state != cmBound {
			return errCMState("listen")
		}
		if id.device != nil {
			if err := id.listen(id.device, id.local.Addr(), int(backlog)); err != nil {
				return err
			}
		} else if err := id.listenEverywhere(int(backlog)); err != nil {
			for _, l := range id.listeners {
				l.close()
			}
			id.listeners = nil
			return err
		}
		id.state = cmListening
		return nil
	})
}

// listenEverywhere listens on all devices with the address, also on those of interfaces that come later. It
// passes over those that cannot be opened.
func (id *cmID) listenEverywhere(backlog int) error {
	if addr := id.local.Addr(); addr.IsLoopback() {
		d, _, err := deviceWith(addr)
		if err != nil {
			return err
		}
		return id.listen(d, addr, backlog)
	}
	err := id.listenOnNew(backlog, false)
	if errors.Is(err, verbs.ErrInUse) || len(id.listeners) == 0 {
		return cmp.Or(err, fmt.Errorf("listen on %v: there is no device with such an address: %w", id.local, verbs.ErrNoDevice))
	}
	if err != nil {
		logError(err) // of devices that it passes over
	}
	id.follow(backlog)
	return nil
}

// listenOn listens on a device at all its addresses of the family.
func (id *cmID) listenOn(name string, backlog int) error {
	d, err := openNamed(name, name)
	if err != nil {
		return err
	}
	addrs, err := d.addressesFor(id.local.Addr(), id.familyOnly)
	for _, addr := range addrs {
		err = errors.Join(err, id.listen(d, addr, backlog))
	}
	return err
}

// follow listens on devices that come later, until the identifier is destroyed.
func (id *cmID) follow(backlog int) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	id.unfollow = func() (wait func()) {
		stop()
		return func() { <-ended }
	}
	look := func() {
		id.call.Lock()
		defer id.call.Unlock()
		if ctx.Err() != nil {
			return
		}
		if err := id.listenOnNew(backlog, true); err != nil {
			logError(err)
		}
	}
	go func() {
		defer close(ended)
		routes.Changes(ctx, look, look)
	}()
}

// listenOnNew listens on the devices that have no listener yet, and returns the errors of all. A device has
// the addresses that its interface has when it is opened, so the interface must have one of the family.
func (id *cmID) listenOnNew(backlog int, later bool) (failed error) {
	own, err := hostaddr.List()
	if err != nil {
		return err
	}
	list, err := listDevices()
	if err != nil {
		return err
	}
	for _, info := range list {
		served := slices.ContainsFunc(id.listeners, func(l *listener) bool { return l.device.name == info.Name })
		ready := info.Interface == "" || slices.ContainsFunc(own, func(o hostaddr.Own) bool { return o.Interface == info.Interface && id.listensAt(o.Addr, later) })
		if served || !ready {
			continue
		}
		failed = errors.Join(failed, id.listenOn(info.Name, backlog))
	}
	return failed
}

// listensAt reports whether an address is worth opening a device for. On an interface that comes later, a
// link-local one of IPv6 comes first, and the others follow.
func (id *cmID) listensAt(addr netip.Addr, later bool) bool {
	if addr.Is4() {
		return id.local.Addr().Is4() || !id.familyOnly
	}
	return id.local.Addr().Is6() && !(later && addr.IsLinkLocalUnicast())
}

var localhost = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// addressesFor returns the addresses to listen at for the unspecified address of a family.
func (d *openDevice) addressesFor(unspecified netip.Addr, familyOnly bool) (list []netip.Addr, err error) {
	if unspecified.Is6() && !familyOnly {
		return []netip.Addr{unspecified}, nil // all of them
	}
	table, err := d.GIDs(cmPort)
	for _, e := range table {
		addr := e.GID.Addr()
		switch {
		case e.Type != verbs.GIDRoCEv2 || addr.Is4() != unspecified.Is4():
		case addr.Is4() && addr.IsLoopback():
			list = append(list, localhost) // by which peers look for the listener
		default:
			list = append(list, addr)
		}
	}
	return list, err
}

// leastBacklog is the smallest backlog of a listener. Here a request counts until its connection
// is established, and a peer repeats a request that was dropped only after a second. librdmacm's
// backlog counts until the program reads the request, so programs give small ones.
const leastBacklog = 128

func (id *cmID) listen(d *openDevice, addr netip.Addr, backlog int) error {
	m, err := d.manager()
	if err != nil {
		return err
	}
	if backlog = max(backlog, 0); backlog > 0 { // zero means the default
		backlog = max(backlog, leastBacklog)
	}
	v, err := m.Listen(verbs.CMListen{Addr: netip.AddrPortFrom(addr, id.local.Port()), Type: id.kind, Backlog: backlog})
	if err != nil {
		return err
	}
	l := &listener{v, id, d}
	id.listeners = append(id.listeners, l)
	m.own(v, l)
	return nil
}

// handleEvent implements eventHandler: it makes an identifier for a request.
func (l *listener) handleEvent(e verbs.CMEvent) {
	if err := l.requested(&e); err != nil {
		logError(err)
		go func() { // the device's locks are held here
			_ = e.ID.Close() // which rejects
			l.device.cm.forget(e.ID)
		}()
	}
}

func (l *listener) requested(e *verbs.CMEvent) error {
	child, err := newCMID(l.id.kind)
	if err != nil {
		return err
	}
	child.conn, child.device, child.state, child.local, child.passive = e.ID, l.device, cmRequested, e.ID.LocalAddr(), true
	to := C.struct_vd_cm_event{_type: C.RDMA_CM_EVENT_CONNECT_REQUEST, request: C.uint32_t(child.handle)}
	setParam(&to, e)
	child.mu.Lock() // until the object is known
	defer child.mu.Unlock()
	if child.c = l.id.deliver(&to); child.c == nil {
		cmIDs.remove(child.handle)
		return errors.New("a request came while its listener was destroyed, or memory has run out")
	}
	l.device.cm.owners[e.ID] = child // whose lock is held here
	return nil
}
