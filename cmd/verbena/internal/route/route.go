// Package route chooses the device through which an address is reached, and explains the
// choice. A wrong device or GID is the most common first mistake of RDMA users.
package route

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/internal/routes"
	"github.com/verbena-rdma/verbena/verbs"
)

// Candidate is a GID of the device.
type Candidate struct {
	Port  int
	Entry verbs.GIDEntry
	Used  bool
	Why   string // why the GID is used, or not
}

// Route is a route from this machine to an address.
type Route struct {
	Target     netip.Addr // invalid: no address was given
	Source     netip.Addr // the system's source address; invalid: there is no route
	Interface  string     // the interface that has Source; empty: unknown
	Device     string     // as device.Open takes it
	Why        string     // why this device
	Candidates []Candidate
}

// Find finds the route to an address through the named device. Without a name, it follows the
// system's routes: it takes an adapter that has their source address, or else the software
// device of the interface. An invalid address stands for any peer.
func Find(name string, target netip.Addr) (*Route, error) {
	r := &Route{Target: target.Unmap(), Device: name, Why: "it was requested"}
	if target.IsValid() {
		r.Source = routes.Source(r.Target)
		if r.Source.IsValid() {
			r.Interface = interfaceOf(r.Source, r.Target.Zone())
		}
	}
	if name == "" {
		if err := r.choose(); err != nil {
			return r, err
		}
	}
	return r, nil
}

// LookUp returns the addresses of a host in the order of the system's resolver. Link-local
// addresses have their zones. If host is an address, LookUp returns it.
func LookUp(ctx context.Context, host string) ([]netip.Addr, error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr.Unmap()}, nil
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
		return nil, fmt.Errorf("%s has no address", host)
	}
	return list, nil
}

// DefaultDevice returns the device of the interface that leads away from this machine, for a
// server without a named device. If there is no such interface, it returns soft-lo.
func DefaultDevice() string {
	for _, away := range []string{"192.0.2.1", "2001:db8::1"} { // reserved for documentation (RFC 5737, 3849)
		if r, err := Find("", netip.MustParseAddr(away)); err == nil {
			return r.Device
		}
	}
	return "soft-lo"
}

// choose chooses the device, and sets Device and Why.
func (r *Route) choose() error {
	switch {
	case !r.Target.IsValid():
		return errors.New("name a device with -d: without a target address, the program cannot choose one")
	case !r.Source.IsValid():
		return fmt.Errorf("the system has no route to %v: check the address, and that the interface to it is up (ip route get %v)", r.Target, r.Target)
	}
	if adapter := adapterWith(r.Source); adapter != "" {
		r.Device = adapter
		r.Why = fmt.Sprintf("the adapter that has %v, the source address of the system's route to %v", r.Source, r.Target)
		return nil
	}
	if r.Interface == "" {
		return fmt.Errorf("no interface has %v, the source address of the system's route to %v; name a device with -d", r.Source, r.Target)
	}
	r.Device = "soft-" + r.Interface
	r.Why = fmt.Sprintf("software device: the system's route to %v uses %s, and no adapter has its address %v", r.Target, r.Interface, r.Source)
	return nil
}

// Rank fills in the candidates from the GID table of an open device.
func (r *Route) Rank(dev verbs.Device) error {
	attr, err := dev.Query()
	if err != nil {
		return err
	}
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

// interfaceOf returns the name of the interface with an address. Every address of 127.0.0.0/8
// belongs to the loopback interface. A zone, if not empty, is the name or the index of the
// interface: several interfaces may have the same link-local address.
func interfaceOf(a netip.Addr, zone string) string {
	list, err := net.Interfaces()
	if err != nil {
		return ""
	}
	for _, i := range list {
		if i.Flags&net.FlagUp == 0 || zone != "" && zone != i.Name && zone != strconv.Itoa(i.Index) {
			continue
		}
		if a.IsLoopback() && i.Flags&net.FlagLoopback != 0 {
			return i.Name
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, own := range addrs {
			if p, err := netip.ParsePrefix(own.String()); err == nil && p.Addr().Unmap().WithZone("") == a {
				return i.Name
			}
		}
	}
	return ""
}

// adapterWith returns the name of the device, other than a software device, that has an
// address; empty: none.
func adapterWith(a netip.Addr) string {
	list, _ := device.List()
	for _, info := range list {
		if info.Driver == "soft" {
			continue
		}
		dev, err := device.Open(info.Name)
		if err != nil {
			continue
		}
		has := hasAddress(dev, a)
		_ = dev.Close()
		if has {
			return info.Name
		}
	}
	return ""
}

func hasAddress(dev verbs.Device, a netip.Addr) bool {
	attr, err := dev.Query()
	if err != nil {
		return false
	}
	for port := 1; port <= attr.Ports; port++ {
		table, err := dev.GIDs(port)
		if err != nil {
			continue
		}
		for _, e := range table {
			if e.Type == verbs.GIDRoCEv2 && e.GID.Addr() == a {
				return true
			}
		}
	}
	return false
}
