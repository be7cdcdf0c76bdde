package rdma

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/gid"
)

// usablePort asks for a port's attributes, and fails if no packets pass it.
func usablePort(dev verbs.Device, number int) (verbs.PortAttr, error) {
	port, err := dev.QueryPort(number)
	switch {
	case err != nil:
		return port, fmt.Errorf("query port %d of %s: %w", number, dev.Name(), err)
	case port.State == verbs.PortDown || port.State == verbs.PortInit || port.State == verbs.PortArmed:
		return port, fmt.Errorf("%w: port %d of %s is %v and must be %v; check its cable, that its network interface is up, and, on InfiniBand, that a subnet manager runs",
			ErrDevice, number, dev.Name(), port.State, verbs.PortActive)
	case !port.ActiveMTU.Valid():
		return port, fmt.Errorf("%w: port %d of %s reports the path MTU %d; check that its network interface is up",
			ErrDevice, number, dev.Name(), port.ActiveMTU)
	}
	return port, nil
}

// portView is the present state of a context's port. It is replaced as a whole, since any
// goroutine may read it.
type portView struct {
	gid     verbs.GIDEntry // the context's address
	mtu     verbs.MTU
	lid     uint16
	maxSend uint32 // bytes of one message
}

func (s *settings) portView(gid verbs.GIDEntry, mtu verbs.MTU, lid uint16) portView {
	v := portView{gid: gid, mtu: mtu, lid: lid, maxSend: s.caps.MaxSend}
	if s.Transport == verbs.UD {
		v.maxSend = uint32(mtu)
	}
	return v
}

// portView returns the present state of the port.
func (c *core) portView() *portView { return c.port.Load() }

// localIP is the context's IP address. It is not valid on InfiniBand, where IP addresses
// belong to IPoIB and are not in the GID table.
func (c *core) localIP() netip.Addr {
	own := &c.portView().gid
	if own.Type != verbs.GIDRoCEv2 {
		return netip.Addr{}
	}
	return own.GID.Addr()
}

// refreshPort updates the state of the port, for connections and peers that are made from now
// on. It fails while no packets pass the port.
func (c *core) refreshPort() error {
	s, was := c.set, c.portView()
	port, err := usablePort(c.dev, s.Path.Port)
	if err != nil {
		return err
	}
	entry, err := c.currentGID(port.LinkLayer)
	if err != nil {
		return err
	}
	mtu := port.ActiveMTU
	if s.mtuLimit != 0 {
		mtu = min(mtu, s.mtuLimit)
	}
	now := s.portView(entry, mtu, port.LID)
	if now == *was {
		return nil
	}
	c.control.Log().Info().Stringer("gid", entry.GID.Addr()).Int("index", entry.Index).Int("mtu", int(mtu)).
		Uint16("lid", port.LID).Msg("the port has changed; new connections use these attributes")
	c.port.Store(&now)
	return nil
}

// gidTable is the GID table of a port.
func (c *core) gidTable(port int) ([]verbs.GIDEntry, error) {
	table, err := c.dev.GIDs(port)
	if err != nil {
		return nil, fmt.Errorf("read the GID table of port %d of %s: %w", port, c.dev.Name(), err)
	}
	return table, nil
}

// currentGID is the entry of the address that New found, at its present index, since peers
// expect that address. While that is gone, the present address stays; if that is gone too,
// another is chosen.
func (c *core) currentGID(layer verbs.LinkLayer) (verbs.GIDEntry, error) {
	s := c.set
	table, err := c.gidTable(s.Path.Port)
	if err != nil {
		return verbs.GIDEntry{}, err
	}
	for _, known := range [...]verbs.GIDEntry{s.port.gid, c.portView().gid} {
		if e, ok := entryOf(table, known); ok {
			return e, nil
		}
	}
	var want *int
	if s.gidGiven {
		want = s.Path.GIDIndex
	}
	e, err := gid.Choose(table, layer, want)
	if err != nil {
		err = fmt.Errorf("port %d of %s: %w", s.Path.Port, c.dev.Name(), err)
	}
	return e, err
}

// entryOf finds the address of an entry in a table, preferably at the same index.
func entryOf(table []verbs.GIDEntry, known verbs.GIDEntry) (found verbs.GIDEntry, ok bool) {
	for _, e := range table {
		if e.GID != known.GID || e.Type != known.Type {
			continue
		}
		if e.Index == known.Index {
			return e, true
		}
		if !ok {
			found, ok = e, true
		}
	}
	return found, ok
}

// pathProblem returns what is wrong with a port, or with the local address of a connection on
// that port; an empty text if nothing is.
func (c *core) pathProblem(port int, own netip.Addr) string {
	attr, err := usablePort(c.dev, port)
	if err != nil {
		return err.Error()
	}
	if c.gidTableHas(port, attr.LinkLayer, own) {
		return ""
	}
	return fmt.Sprintf("the local address %v is no longer in the GID table of port %d of %s; connect again from an address that is", own, port, c.dev.Name())
}

// anyPathProblem is pathProblem for a connection whose port is not known: it reports a problem
// if no port has the address. Every port has an address that is not valid.
func (c *core) anyPathProblem(own netip.Addr) string {
	first := ""
	for port := 1; port <= c.set.ports; port++ {
		attr, err := usablePort(c.dev, port)
		if err == nil && c.gidTableHas(port, attr.LinkLayer, own) {
			return ""
		}
		if err != nil && (first == "" || own.IsValid() && c.gidTableHas(port, attr.LinkLayer, own)) {
			first = err.Error()
		}
	}
	if first != "" {
		return first
	}
	return fmt.Sprintf("the local address %v is not in the GID table of any port of %s; dial from an address that is", own, c.dev.Name())
}

// gidTableHas reports whether the GID table of a port may have a local address. On InfiniBand
// that is unknown, since the table has no IP addresses.
func (c *core) gidTableHas(port int, layer verbs.LinkLayer, own netip.Addr) bool {
	if layer != verbs.LinkEthernet || !own.IsValid() {
		return true
	}
	table, err := c.dev.GIDs(port)
	return err != nil || slices.ContainsFunc(table, func(e verbs.GIDEntry) bool { return e.GID == verbs.GIDFromAddr(own) })
}
