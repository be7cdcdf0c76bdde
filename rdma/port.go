package rdma

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/verbena-rdma/verbena/internal/gid"
	"github.com/verbena-rdma/verbena/verbs"
)

// usablePort asks for a port's attributes, and fails if no packets pass it.
func usablePort(dev verbs.Device, number int) (verbs.PortAttr, error) {
	port, err := dev.QueryPort(number)
	switch {
	case err != nil:
		return port, fmt.Errorf("query port %d of %s: %w", number, dev.Name(), err)
	case port.State == verbs.PortDown || port.State == verbs.PortInit || port.State == verbs.PortArmed:
		return port, fmt.Errorf("%w: port %d of %s is %v, and has to be %v; check its cable, that its network interface is up, and on InfiniBand that a subnet manager runs",
			ErrDevice, number, dev.Name(), port.State, verbs.PortActive)
	case !port.ActiveMTU.Valid():
		return port, fmt.Errorf("%w: port %d of %s reports the path MTU %d; check that its network interface is up",
			ErrDevice, number, dev.Name(), port.ActiveMTU)
	}
	return port, nil
}

// refreshPort takes over what has changed of the port since: connections and peers that are
// made from now on use it. It fails while no packets pass the port.
func (c *Context) refreshPort() error {
	s := c.set
	port, err := usablePort(c.dev, s.Port)
	if err != nil {
		return err
	}
	entry, err := s.currentGID(c.dev, port.LinkLayer)
	if err != nil {
		return err
	}
	mtu := port.ActiveMTU
	if s.mtuLimit != 0 {
		mtu = min(mtu, s.mtuLimit)
	}
	if entry == s.gid && mtu == s.MTU && port.LID == s.lid {
		return nil
	}
	c.set.Log.Info().Str("context", s.Name).Stringer("gid", entry.GID.Addr()).Int("index", entry.Index).Int("mtu", int(mtu)).
		Uint16("lid", port.LID).Msg("the port has changed: new connections use this")
	s.gid, s.MTU, s.lid = entry, mtu, port.LID
	return nil
}

// currentGID is the entry of the context's address, at whichever index it is now. If that
// address is gone, it is chosen anew.
func (s *settings) currentGID(dev verbs.Device, layer verbs.LinkLayer) (verbs.GIDEntry, error) {
	table, err := dev.GIDs(s.Port)
	if err != nil {
		return s.gid, fmt.Errorf("read the GID table of port %d of %s: %w", s.Port, dev.Name(), err)
	}
	moved := slices.IndexFunc(table, func(e verbs.GIDEntry) bool { return e.GID == s.gid.GID && e.Type == s.gid.Type })
	stays := slices.IndexFunc(table, func(e verbs.GIDEntry) bool {
		return e.GID == s.gid.GID && e.Type == s.gid.Type && e.Index == s.gid.Index
	})
	switch {
	case stays >= 0:
		return table[stays], nil
	case moved >= 0:
		return table[moved], nil
	}
	var want *int
	if s.gidGiven {
		want = s.GIDIndex
	}
	e, err := gid.Choose(table, layer, want)
	if err != nil {
		err = fmt.Errorf("port %d of %s: %w", s.Port, dev.Name(), err)
	}
	return e, err
}

// onPath says what is wrong with the port or the local address of a connection, which it had
// when it was made.
func (c *Context) onPath(own netip.Addr) string {
	if _, err := usablePort(c.dev, c.set.Port); err != nil {
		return err.Error()
	}
	if c.set.gid.Type != verbs.GIDRoCEv2 || !own.IsValid() {
		return ""
	}
	table, err := c.dev.GIDs(c.set.Port)
	if err != nil || slices.ContainsFunc(table, func(e verbs.GIDEntry) bool { return e.GID == verbs.GIDFromAddr(own) }) {
		return ""
	}
	return fmt.Sprintf("the local address %v is no longer in the GID table of port %d of %s: connect again from one that is", own, c.set.Port, c.dev.Name())
}
