// Package route chooses the device through which an address is reached, and explains the
// choice. A wrong device or GID is the most common first mistake of RDMA users.
//
//	list, err := route.LookUp(ctx, "storage.example")
//	r, err := route.Find("", list[0])
//	dev, err := device.Open(r.Device) // such as "mlx5_0", or "soft-eth0" where no adapter leads there
//
// The choice follows the system's routes, as TCP does: the device is the adapter that has the
// source address of the route, or else the software device of the route's interface. All
// functions ask the system at each call, send nothing to the address, and may be called from
// any goroutine. The methods of a [Route] may not be called concurrently.
package route

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/internal/hostaddr"
	"github.com/verbena-rdma/verbena/internal/routes"
	"github.com/verbena-rdma/verbena/verbs"
)

// Candidate is a GID of the device, as [Route.Rank] assesses it.
type Candidate struct {
	Port  int            // the device's port, from 1
	Entry verbs.GIDEntry // the entry of the port's GID table
	Used  bool           // whether the GID leads to the target; of no more than one candidate
	Why   string         // why the GID is used, or not: a phrase for people
}

// Route is a route from this machine to an address. [Find] returns it.
type Route struct {
	Target     netip.Addr  // never IPv4-mapped; invalid: no address was given
	Source     netip.Addr  // the system's source address, without zone; invalid: there is no route
	Interface  string      // the interface that has Source; empty: unknown
	Device     string      // as device.Open takes it
	Why        string      // why this device: a phrase for people
	Candidates []Candidate // the device's GIDs; empty before Rank

	err error // why Source is invalid
}

// Find finds the route to an address through the named device. Without a name, it follows the
// system's routes: it takes an adapter that has their source address, or else the software
// device of the interface. A link-local address needs its zone: the name or the index of the
// interface. An invalid address stands for any peer.
//
// With a name, Find always succeeds; it does not open the device. Without one, the error matches
// [verbs.ErrInvalid] if the address is invalid, and [verbs.ErrNoRoute] if the system has no route
// to it or no interface has the source address.
func Find(name string, target netip.Addr) (*Route, error) {
	r := &Route{Target: target.Unmap(), Device: name, Why: "it was requested"}
	if target.IsValid() {
		r.Source, r.err = routes.Find(r.Target)
		if r.Source.IsValid() {
			r.Interface = hostaddr.InterfaceOf(r.Source.WithZone(r.Target.Zone()))
		}
	}
	if name == "" {
		if err := r.choose(); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// LookUp returns the addresses of a host in the order of the system's resolver, one at least.
// Link-local addresses have their zones. If host is an address, without brackets, LookUp returns
// it and asks nobody. An empty host, and an unspecified address, stand for this host: LookUp returns
// loopback addresses, as package net dials them. The error is a [net.DNSError], or that of the ended context.
func LookUp(ctx context.Context, host string) ([]netip.Addr, error) {
	addr, err := netip.ParseAddr(host)
	switch addr = addr.Unmap(); {
	case host == "" || err == nil && addr.IsUnspecified():
		here := []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
		if addr.Is4() {
			here = here[:1]
		}
		return here, nil
	case err == nil:
		return []netip.Addr{addr}, nil
	}
	found, err := net.DefaultResolver.LookupIPAddr(ctx, host)
	if err != nil {
		return nil, err
	}
	var list []netip.Addr
	for _, a := range found {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			list = append(list, addr.Unmap().WithZone(a.Zone))
		}
	}
	if len(list) == 0 {
		return nil, &net.DNSError{Err: "the host has no address", Name: host, IsNotFound: true}
	}
	return list, nil
}

// noRoute is an error that matches verbs.ErrNoRoute, and the system's. It does not wrap the first, whose
// text is about one device.
type noRoute struct {
	text   string
	system error // perhaps nil
}

func (e *noRoute) Error() string        { return e.text }
func (e *noRoute) Is(target error) bool { return target == verbs.ErrNoRoute }
func (e *noRoute) Unwrap() error        { return e.system }

// choose chooses the device, and sets Device and Why.
func (r *Route) choose() error {
	switch {
	case !r.Target.IsValid():
		return fmt.Errorf("%w: without a target address, no device can be chosen; name a device", verbs.ErrInvalid)
	case !r.Source.IsValid():
		return &noRoute{fmt.Sprintf("the system has no route to %v: check the address, and that the interface to it is up (ip route get %v)", r.Target, r.Target), r.err}
	}
	if adapter := adapterAddresses()[r.Source]; adapter != "" {
		r.Device = adapter
		r.Why = fmt.Sprintf("the adapter that has %v, the source address of the system's route to %v", r.Source, r.Target)
		return nil
	}
	if r.Interface == "" {
		return &noRoute{text: fmt.Sprintf("no interface has %v, the source address of the system's route to %v; name a device", r.Source, r.Target)}
	}
	r.Device = "soft-" + r.Interface
	r.Why = fmt.Sprintf("software device: the system's route to %v uses %s, and no adapter has its address %v", r.Target, r.Interface, r.Source)
	return nil
}

// Rank replaces the candidates with the GIDs of all ports of an open device, and marks the one
// that leads to the target, if there is one. Its errors are those of the device.
func (r *Route) Rank(dev verbs.Device) error {
	attr, err := dev.Query()
	if err != nil {
		return err
	}
	r.Candidates = nil
	used := false
	for port := 1; port <= attr.Ports; port++ {
		table, err := dev.GIDs(port)
		if err != nil {
			return err
		}
		for _, e := range table {
			c := Candidate{Port: port, Entry: e}
			c.Used, c.Why = r.assess(e, used)
			used = used || c.Used
			r.Candidates = append(r.Candidates, c)
		}
	}
	return nil
}

// assess reports whether the target is reached from a GID, and why. taken: another GID is used
// already.
func (r *Route) assess(e verbs.GIDEntry, taken bool) (bool, string) {
	addr := e.GID.Addr()
	switch {
	case e.Type != verbs.GIDRoCEv2 && e.Type != verbs.GIDInfiniBand:
		return false, fmt.Sprintf("type %v, which is not routed", e.Type)
	case !r.Target.IsValid():
		return false, "it reaches any peer of the same kind"
	case addr.Is4() != r.Target.Is4():
		return false, fmt.Sprintf("its address family differs from that of %v", r.Target)
	case addr.IsLoopback() != r.Target.IsLoopback():
		return false, "loopback and other addresses cannot reach each other"
	case taken:
		return false, "not needed"
	case addr == r.Source:
		return true, "the source address of the system's route"
	case r.Target.IsLoopback():
		return true, "the device's address on the loopback interface"
	case addr.IsLinkLocalUnicast() != r.Target.IsLinkLocalUnicast():
		return false, "link-local and other addresses cannot reach each other"
	}
	return false, fmt.Sprintf("not the source address of the system's route, %v", r.Source)
}

// adapterAddresses returns the devices, other than software devices, by their addresses.
func adapterAddresses() map[netip.Addr]string {
	names := map[netip.Addr]string{}
	list, _ := device.List()
	for _, info := range list {
		if info.Driver == "soft" {
			continue
		}
		dev, err := device.Open(info.Name)
		if err != nil {
			continue
		}
		addAddresses(names, dev)
		_ = dev.Close()
	}
	return names
}

// addAddresses adds the addresses of a device, unless another has them.
func addAddresses(names map[netip.Addr]string, dev verbs.Device) {
	attr, err := dev.Query()
	if err != nil {
		return
	}
	for port := 1; port <= attr.Ports; port++ {
		table, err := dev.GIDs(port)
		if err != nil {
			continue
		}
		for _, e := range table {
			if a := e.GID.Addr(); e.Type == verbs.GIDRoCEv2 && names[a] == "" {
				names[a] = dev.Name()
			}
		}
	}
}
