package gsi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/internal/closers"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/internal/profiling"
	"github.com/verbena-rdma/verbena/soft/internal/roce/cm"
	"github.com/verbena-rdma/verbena/soft/internal/roce/registry"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// Manager implements verbs.CM.
type Manager struct {
	services *Services
	handle   func(verbs.CMEvent)
	// The values are in the order in which the objects were made.
	listeners   map[*listener]uint64
	ids         map[*connectionID]uint64
	memberships map[*membership]uint64
	serial      uint64 // of the last object
	closed      bool
	known       registry.Known             // listeners of this machine
	lookUps     map[lookUp][]*connectionID // waiting IDs; a key with an entry is being looked up
	resolving   sync.WaitGroup
	ctx         context.Context // for look-ups
	cancel      context.CancelFunc
	// LookUpTimeout is how long a look-up waits for other processes of the machine. The next look-up
	// follows while the dial lasts. It may be changed before the first dial.
	LookUpTimeout time.Duration
}

// Open opens a connection manager, which passes its events to handle. The locks of all shards
// are held.
func (g *Services) Open(handle func(verbs.CMEvent)) *Manager {
	g.managers++
	ctx, cancel := context.WithCancel(context.Background())
	return &Manager{
		services: g, handle: handle, ctx: ctx, cancel: cancel, LookUpTimeout: time.Second,
		listeners: make(map[*listener]uint64), ids: make(map[*connectionID]uint64),
		memberships: make(map[*membership]uint64), lookUps: make(map[lookUp][]*connectionID),
	}
}

// lock takes the locks of all shards for a call on an open manager. The caller unlocks them,
// also after an error.
func (c *Manager) lock(op string) (*Services, error) {
	g := c.services
	g.cfg.Lock.Lock()
	if c.closed {
		return g, fmt.Errorf("%s: the connection manager: %w", op, verbs.ErrClosed)
	}
	return g, nil
}

// closeTimeout bounds how long other processes can delay Close: before Linux 6.16, a look-up can
// wait for the files that they have sent (unixsocket.Close).
const closeTimeout = 2 * time.Second

// Close implements verbs.CM.
func (c *Manager) Close() error {
	for _, l := range c.close() { // in parallel: other processes can delay each
		c.resolving.Go(l.entries.Close)
	}
	c.cancel()
	closers.Wait(closeTimeout, c.resolving.Wait)
	c.known.Close()
	return nil
}

// close closes the manager and returns its listeners. The caller closes their entries without
// the lock.
func (c *Manager) close() (listeners []*listener) {
	g, err := c.lock("close")
	defer g.cfg.Lock.Unlock()
	if err != nil {
		return nil // closed before
	}
	c.closed = true
	for _, l := range inOrder(c.listeners) {
		l.end()
		listeners = append(listeners, l)
	}
	for _, id := range inOrder(c.ids) {
		id.abandon()
	}
	for _, m := range inOrder(c.memberships) {
		if err := m.end(); err != nil {
			g.cfg.Log.Debug().Err(err).Msg("close connection manager")
		}
	}
	clear(c.listeners)
	clear(c.ids)
	c.services.managers--
	c.services.processOutput()
	return listeners
}

// nextSerial returns the number of a new object.
func (c *Manager) nextSerial() uint64 {
	c.serial++
	return c.serial
}

// inOrder returns objects in the order in which they were made.
func inOrder[T comparable](objects map[T]uint64) []T {
	return slices.SortedFunc(maps.Keys(objects), func(a, b T) int { return cmp.Compare(objects[a], objects[b]) })
}

// background calls f on another goroutine. Close waits for it, up to closeTimeout.
func (c *Manager) background(f func()) {
	c.resolving.Add(1)
	c.services.cfg.Network.Go(func() {
		defer c.resolving.Done()
		profiling.Label("connection management", c.services.cfg.Device, "")
		f()
	})
}

// service returns the service of a port.
func service(t verbs.QPType, port uint16) cm.Service {
	if t == verbs.UD {
		return cm.Service{Space: cm.PortSpaceUDP, Port: port}
	}
	return cm.Service{Space: cm.PortSpaceTCP, Port: port}
}

// firstDynamicPort is the first port that a manager may choose (RFC 6335 6).
const firstDynamicPort = 49152

// listener implements verbs.CMListener.
type listener struct {
	manager *Manager
	service *cm.Listener
	offers  cm.Service
	addr    netip.AddrPort
	entries registry.Entries
}

// Listen implements verbs.CM.
func (c *Manager) Listen(p verbs.CMListen) (verbs.CMListener, error) {
	op := fmt.Sprintf("listen on %v", p.Addr)
	var closing sync.WaitGroup // entries of ports that have another listener
	defer closing.Wait()       // without the lock: other processes can delay it
	g, err := c.lock(op)
	defer g.cfg.Lock.Unlock()
	if err != nil {
		return nil, err
	}
	addr, names, err := g.listenNames(p.Addr.Addr().Unmap())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	l := &listener{manager: c}
	params := cm.ListenParams{Addr: addr, Transport: p.Type, Backlog: p.Backlog, MTU: p.MTU, Value: l}
	ports := []uint16{p.Addr.Port()}
	if ports[0] == 0 {
		ports = g.dynamicPorts()
	}
	for _, port := range ports {
		params.Service = service(p.Type, port)
		if err = l.open(params, names, &closing); err == nil || !errors.Is(err, verbs.ErrInUse) {
			l.addr, l.offers = netip.AddrPortFrom(addr, port), params.Service
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: device %s: %w", op, g.cfg.Device, err)
	}
	c.listeners[l] = c.nextSerial()
	for _, e := range g.cfg.Endpoints {
		if addr.IsValid() && !addr.IsUnspecified() && e.Addr().Addr() != addr {
			continue
		}
		if err := e.Listen(l.offers); err != nil {
			g.cfg.Log.Warn().Err(err).Stringer("listener", l.addr).Stringer("address", e.Addr().Addr()).Uint16("udp_port", e.Addr().Port()).Uint16("in_use", wire.UDPPort).
				Msg("requests to RoCEv2's port of this address do not come to this listener: only Verbena devices can reach it")
		}
	}
	return l, nil
}

// listenNames returns the address to listen on, and the addresses by which processes of this
// machine find the listener, each with the address and UDP port of its endpoint. The
// unspecified address means all addresses of the device. Every address of the loopback interface
// names a device that has one of them, so that programs need not know it: Debian gives the name
// of a host the address 127.0.1.1.
func (g *Services) listenNames(addr netip.Addr) (netip.Addr, map[netip.Addr]netip.AddrPort, error) {
	names := make(map[netip.Addr]netip.AddrPort)
	addr = addr.WithZone("") // the device is on one interface
	if e := g.endpointAt(addr); e >= 0 {
		names[addr] = g.cfg.Endpoints[e].Addr()
		return addr, names, nil
	}
	all := !addr.IsValid() || addr.IsUnspecified()
	localhost := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	for _, e := range g.cfg.Endpoints {
		own := e.Addr()
		if all {
			names[own.Addr()] = own
		}
		if own.Addr().Is4() && own.Addr().IsLoopback() {
			switch {
			case addr.Is4() && addr.IsLoopback():
				return own.Addr(), map[netip.Addr]netip.AddrPort{addr: own, own.Addr(): own}, nil
			case all:
				names[localhost] = own
			}
		}
	}
	if !all {
		return addr, nil, fmt.Errorf("%v is not an address of device %s, which has %v: %w", addr, g.cfg.Device, g.addresses(), verbs.ErrInvalid)
	}
	return addr, names, nil
}

// open opens the listener on a port, and registers it. If it fails, it closes its entries in the
// background.
func (l *listener) open(params cm.ListenParams, names map[netip.Addr]netip.AddrPort, closing *sync.WaitGroup) (err error) {
	m := l.manager.services.manager
	if l.service, err = m.Listen(params); err != nil {
		return err
	}
	if l.manager.services.cfg.Network.Simulated() {
		return nil
	}
	for addr, device := range names {
		if err := l.entries.Add(portSpace(params.Transport), netip.AddrPortFrom(addr, params.Service.Port), device); err != nil {
			entries := l.entries
			l.entries = registry.Entries{}
			closing.Go(entries.Close)
			l.service.Close(l.manager.services.cfg.Now())
			if !errors.Is(err, verbs.ErrInUse) {
				return fmt.Errorf("register port %d of %v for the processes of this machine: %w", params.Service.Port, addr, err)
			}
			return fmt.Errorf("port %d of %v already has a listener on this machine: %w", params.Service.Port, addr, err)
		}
	}
	return nil
}

// portSpace returns the port space of a transport service.
func portSpace(t verbs.QPType) registry.Space {
	if t == verbs.UD {
		return registry.UDP
	}
	return registry.TCP
}

// dynamicPorts returns random ports to try.
func (g *Services) dynamicPorts() []uint16 {
	ports := make([]uint16, 64)
	for i := range ports {
		ports[i] = g.dynamicPort()
	}
	return ports
}

func (g *Services) dynamicPort() uint16 { return firstDynamicPort | uint16(host.Uint32(g.cfg.Network)) }

// end ends the service of a listener.
func (l *listener) end() {
	g := l.manager.services
	l.service.Close(g.cfg.Now())
	for _, e := range g.cfg.Endpoints {
		e.Unlisten(l.offers)
	}
}

// Addr implements verbs.CMListener.
func (l *listener) Addr() netip.AddrPort { return l.addr }

// Close implements verbs.CMListener.
func (l *listener) Close() error {
	g, err := l.manager.lock("close listener")
	if err != nil {
		g.cfg.Lock.Unlock()
		return nil // closed with its manager
	}
	delete(l.manager.listeners, l)
	l.end()
	l.manager.services.processOutput()
	g.cfg.Lock.Unlock()
	l.entries.Close() // without the lock: other processes can delay it
	return nil
}
