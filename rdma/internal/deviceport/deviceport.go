// Package deviceport is the port of a device that a context uses: its address in the GID table, its path
// MTU and its LID, which may change, and what is wrong if no packets pass it.
package deviceport

import (
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/internal/errs"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/gid"
)

// State is the state of a port.
type State struct {
	GID verbs.GIDEntry // the context's address
	MTU verbs.MTU
	LID uint16
}

// Port is a port that a context uses. Refresh belongs to one goroutine; any may call the other
// methods.
type Port struct {
	dev    verbs.Device
	number int
	want   *int           // index that the address was chosen by; nil: none
	limit  verbs.MTU      // of the path MTU; zero: the port's
	first  verbs.GIDEntry // the address at first
	state  atomic.Pointer[State]
}

// New returns a port with the attributes that Usable has returned. want is the index of the address
// in the GID table; nil: the best one. limit is the largest path MTU; zero: the port's. Errors match
// errs.ErrGID, or are the device's.
func New(dev verbs.Device, number int, attr *verbs.PortAttr, want *int, limit verbs.MTU) (*Port, error) {
	p := &Port{dev: dev, number: number, want: want, limit: limit}
	if want != nil {
		p.want = new(*want)
	}
	var err error
	if p.first, err = gid.Find(dev, number, attr.LinkLayer, want); err != nil {
		return nil, err
	}
	p.state.Store(p.with(attr, p.first))
	return p, nil
}

func (p *Port) with(attr *verbs.PortAttr, address verbs.GIDEntry) *State {
	s := &State{GID: address, MTU: attr.ActiveMTU, LID: attr.LID}
	if p.limit != 0 {
		s.MTU = min(s.MTU, p.limit)
	}
	return s
}

// State is the present state. It does not change.
func (p *Port) State() *State { return p.state.Load() }

// Chosen reports whether the address was chosen by its index.
func (p *Port) Chosen() bool { return p.want != nil }

// IP is the IP address. It is not valid on InfiniBand, where IP addresses belong to IPoIB and are
// not in the GID table.
func (p *Port) IP() netip.Addr {
	own := &p.State().GID
	if own.Type != verbs.GIDRoCEv2 {
		return netip.Addr{}
	}
	return own.GID.Addr()
}

// Usable asks for a port's attributes, and fails if no packets pass it.
func Usable(dev verbs.Device, number int) (verbs.PortAttr, error) {
	port, err := dev.QueryPort(number)
	switch {
	case err != nil:
		return port, fmt.Errorf("query port %d of %s: %w", number, dev.Name(), err)
	case port.State == verbs.PortDown || port.State == verbs.PortInit || port.State == verbs.PortArmed:
		return port, fmt.Errorf("%w: port %d of %s is %v and must be %v; check its cable, that its network interface is up, and, on InfiniBand, that a subnet manager runs",
			errs.ErrDevice, number, dev.Name(), port.State, verbs.PortActive)
	case !port.ActiveMTU.Valid():
		return port, fmt.Errorf("%w: port %d of %s reports the path MTU %d; check that its network interface is up",
			errs.ErrDevice, number, dev.Name(), port.ActiveMTU)
	}
	return port, nil
}

// Refresh updates the state, and reports whether it has changed. It fails while no packets pass the
// port; the state stays then.
func (p *Port) Refresh() (changed bool, err error) {
	attr, err := Usable(p.dev, p.number)
	if err != nil {
		return false, err
	}
	address, err := p.address(attr.LinkLayer)
	if err != nil {
		return false, err
	}
	now := p.with(&attr, address)
	if *now == *p.State() {
		return false, nil
	}
	p.state.Store(now)
	return true, nil
}

// address is the entry of the first address, at its present index, since peers expect that address.
// While that is gone, the present address stays; if that is gone too, another is chosen.
func (p *Port) address(layer verbs.LinkLayer) (verbs.GIDEntry, error) {
	for _, known := range [...]verbs.GIDEntry{p.first, p.State().GID} {
		if e, ok, err := p.Find(known); err != nil || ok {
			return e, err
		}
	}
	return gid.Find(p.dev, p.number, layer, p.want)
}

// Find finds an address in the GID table, preferably at the same index.
func (p *Port) Find(known verbs.GIDEntry) (found verbs.GIDEntry, ok bool, err error) {
	table, err := p.dev.GIDs(p.number)
	if err != nil {
		return found, false, fmt.Errorf("read the GID table of port %d of %s: %w", p.number, p.dev.Name(), err)
	}
	for _, e := range table {
		if e.GID != known.GID || e.Type != known.Type {
			continue
		}
		if e.Index == known.Index {
			return e, true, nil
		}
		if !ok {
			found, ok = e, true
		}
	}
	return found, ok, nil
}

// Problem returns what is wrong with a port of a device, or with the local address of a connection on
// that port; an empty text if nothing is.
func Problem(dev verbs.Device, number int, own netip.Addr) string {
	attr, err := Usable(dev, number)
	if err != nil {
		return err.Error()
	}
	if mayHave(dev, number, attr.LinkLayer, own) {
		return ""
	}
	return fmt.Sprintf("the local address %v is no longer in the GID table of port %d of %s; connect again from an address that is", own, number, dev.Name())
}

// AnyProblem is Problem for a connection that may use any of the device's ports: it reports a problem
// if no port has the address. Every port has an address that is not valid.
func AnyProblem(dev verbs.Device, ports int, own netip.Addr) string {
	first := ""
	for number := 1; number <= ports; number++ {
		attr, err := Usable(dev, number)
		has := mayHave(dev, number, attr.LinkLayer, own)
		if err == nil && has {
			return ""
		}
		if err != nil && (first == "" || own.IsValid() && has) {
			first = err.Error()
		}
	}
	if first != "" {
		return first
	}
	return fmt.Sprintf("the local address %v is not in the GID table of any port of %s; dial from an address that is", own, dev.Name())
}

// mayHave reports whether the GID table of a port may have a local address. On InfiniBand that is
// unknown, since the table has no IP addresses.
func mayHave(dev verbs.Device, number int, layer verbs.LinkLayer, own netip.Addr) bool {
	if layer != verbs.LinkEthernet || !own.IsValid() {
		return true
	}
	table, err := dev.GIDs(number)
	return err != nil || slices.ContainsFunc(table, func(e verbs.GIDEntry) bool { return e.GID == verbs.GIDFromAddr(own) })
}
