//go:build linux && cgo && verbs

package main

// #include "device.h"
import "C"

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"unsafe"

	"github.com/verbena-rdma/verbena/internal/hostaddr"
	"github.com/verbena-rdma/verbena/internal/routes"
	"github.com/verbena-rdma/verbena/verbs"
)

// addrPortOf converts a socket address of IPv4 or IPv6.
func addrPortOf(a *C.struct_sockaddr) (netip.AddrPort, error) {
	if a == nil {
		return netip.AddrPort{}, fmt.Errorf("the address is NULL: %w", verbs.ErrInvalid)
	}
	switch a.sa_family {
	case C.AF_INET:
		in := (*C.struct_sockaddr_in)(unsafe.Pointer(a))
		addr := netip.AddrFrom4(*(*[4]byte)(unsafe.Pointer(&in.sin_addr)))
		return netip.AddrPortFrom(addr, portOf(unsafe.Pointer(&in.sin_port))), nil
	case C.AF_INET6:
		in := (*C.struct_sockaddr_in6)(unsafe.Pointer(a))
		addr := netip.AddrFrom16(*(*[16]byte)(unsafe.Pointer(&in.sin6_addr)))
		if addr.IsLinkLocalUnicast() && in.sin6_scope_id != 0 {
			addr = addr.WithZone(strconv.Itoa(int(in.sin6_scope_id)))
		}
		return netip.AddrPortFrom(addr.Unmap(), portOf(unsafe.Pointer(&in.sin6_port))), nil
	}
	return netip.AddrPort{}, fmt.Errorf("an address has family %d; software devices have IPv4 and IPv6: %w", a.sa_family, verbs.ErrInvalid)
}

func portOf(p unsafe.Pointer) uint16 { return binary.BigEndian.Uint16((*[2]byte)(p)[:]) }

// copyAddrPort stores a socket address. An invalid one is stored as AF_UNSPEC.
func copyAddrPort(to *C.struct_sockaddr_storage, a netip.AddrPort) {
	*to = C.struct_sockaddr_storage{}
	switch addr := a.Addr(); {
	case addr.Is4():
		in := (*C.struct_sockaddr_in)(unsafe.Pointer(to))
		in.sin_family = C.AF_INET
		*(*[4]byte)(unsafe.Pointer(&in.sin_addr)) = addr.As4()
		binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&in.sin_port))[:], a.Port())
	case addr.Is6():
		in := (*C.struct_sockaddr_in6)(unsafe.Pointer(to))
		in.sin6_family = C.AF_INET6
		*(*[16]byte)(unsafe.Pointer(&in.sin6_addr)) = addr.As16()
		binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&in.sin6_port))[:], a.Port())
		if zone, err := strconv.Atoi(addr.Zone()); err == nil {
			in.sin6_scope_id = C.uint32_t(zone)
		}
	}
}

// cmPort is the port of all devices: software devices have one.
const cmPort = 1

// deviceWith returns the device with an address of this machine, and the index of the address in
// its GID table. Devices that cannot be opened are passed over.
func deviceWith(addr netip.Addr) (*openDevice, verbs.GIDEntry, error) {
	names, ifi, err := deviceNames(addr)
	if err != nil {
		return nil, verbs.GIDEntry{}, err
	}
	for _, name := range names {
		d, err := openNamed(name, name)
		if err != nil {
			logError(err)
			continue
		}
		if e, ok := d.entryFor(addr, ifi); ok {
			return d, e, nil
		}
	}
	return nil, verbs.GIDEntry{}, fmt.Errorf("none of the devices %v has the address %v: %w", names, addr, verbs.ErrNoDevice)
}

// deviceNames returns the names of all devices, beginning with that of the interface with an
// address, if it is known, and the name of that interface.
func deviceNames(addr netip.Addr) (names []string, ifi string, err error) {
	list, err := listDevices()
	if err != nil {
		return nil, "", err
	}
	ifi = hostaddr.InterfaceOf(addr)
	for _, info := range list {
		if ifi != "" && info.Interface == ifi {
			names = slices.Insert(names, 0, info.Name)
		} else {
			names = append(names, info.Name)
		}
	}
	return names, ifi, nil
}

// entryFor returns the entry of the GID table for an address of this machine. A device on the
// loopback interface has one address of 127.0.0.0/8, and stands for all of them.
func (d *openDevice) entryFor(addr netip.Addr, ifi string) (found verbs.GIDEntry, ok bool) {
	table, err := d.GIDs(cmPort)
	if err != nil {
		logError(err)
		return found, false
	}
	for _, e := range table {
		own := e.GID.Addr()
		switch {
		case e.Type != verbs.GIDRoCEv2:
		case own == addr.WithZone("") && (!own.IsLinkLocalUnicast() || ifi == "" || e.Interface == "" || e.Interface == ifi):
			return e, true
		case own.IsLoopback() && addr.IsLoopback() && own.Is4() == addr.Is4() && !ok:
			found, ok = e, true
		}
	}
	return found, ok
}

// sourceOf returns the source address of packets to a peer.
func sourceOf(peer netip.Addr) (netip.Addr, error) {
	source := routes.Source(peer)
	if !source.IsValid() {
		return source, fmt.Errorf("the system has no route to %v: %w", peer, syscall.ENETUNREACH)
	}
	return source.Unmap().WithZone(peer.Zone()), nil
}

// bindings are the ports that identifiers of this process are bound to.
var bindings struct {
	sync.Mutex
	byPort map[servicePort][]*cmID
}

// servicePort is a port in the port space of connections or of datagrams.
type servicePort struct {
	datagrams bool
	number    uint16
}

// firstDynamicPort is the first port that is chosen for port 0 (RFC 6335 6).
const firstDynamicPort = 49152

// reserve binds the identifier to a port of an address. For port 0 it chooses one.
func (id *cmID) reserve(addr netip.AddrPort) (netip.AddrPort, error) {
	bindings.Lock()
	defer bindings.Unlock()
	if bindings.byPort == nil {
		bindings.byPort = make(map[servicePort][]*cmID)
	}
	if addr.Port() != 0 {
		if !id.bindable(addr) {
			return addr, fmt.Errorf("bind to %v: the program uses the port already: %w", addr, verbs.ErrInUse)
		}
		id.record(addr)
		return addr, nil
	}
	for range 1 << 14 {
		try := netip.AddrPortFrom(addr.Addr(), firstDynamicPort|uint16(rand.Uint32()))
		if id.bindable(try) {
			id.record(try)
			return try, nil
		}
	}
	return addr, fmt.Errorf("bind to %v: all ports are in use: %w", addr.Addr(), syscall.EADDRNOTAVAIL)
}

func (id *cmID) record(addr netip.AddrPort) {
	key := servicePort{id.kind == verbs.UD, addr.Port()}
	id.bound = addr
	bindings.byPort[key] = append(bindings.byPort[key], id)
}

// bindable reports whether no other identifier has the port of an overlapping address.
func (id *cmID) bindable(addr netip.AddrPort) bool {
	for _, other := range bindings.byPort[servicePort{id.kind == verbs.UD, addr.Port()}] {
		if !(id.reuse && other.reuse) && overlap(id, addr.Addr(), other, other.bound.Addr()) {
			return false
		}
	}
	return true
}

func overlap(a *cmID, x netip.Addr, b *cmID, y netip.Addr) bool {
	return x == y || covers(a, x, y) || covers(b, y, x)
}

// covers reports whether an address means all addresses, the other one included.
func covers(id *cmID, all, one netip.Addr) bool {
	return all.IsUnspecified() && (all.Is4() == one.Is4() || all.Is6() && !id.familyOnly)
}

// release gives the port back.
func (id *cmID) release() {
	if !id.bound.IsValid() {
		return
	}
	bindings.Lock()
	defer bindings.Unlock()
	key := servicePort{id.kind == verbs.UD, id.bound.Port()}
	rest := slices.DeleteFunc(bindings.byPort[key], func(other *cmID) bool { return other == id })
	if len(rest) == 0 {
		delete(bindings.byPort, key)
	} else {
		bindings.byPort[key] = rest
	}
	id.bound = netip.AddrPort{}
}
