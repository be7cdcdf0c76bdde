package roce

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/internal/routes"
	"github.com/verbena-rdma/verbena/soft/internal/roce/admission"
	"github.com/verbena-rdma/verbena/soft/internal/roce/cm"
	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/soft/internal/roce/registry"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// generalServices is queue pair 1 of the device, the general services interface (IBTA
// 13.5.1): what the connection managers that programs have opened have in common. It
// is there from the first of them on, until the device is closed, so that connections
// live out their time-wait. All methods are called with the lock of the first shard held.
type generalServices struct {
	device   *Device
	manager  *cm.Manager
	managers int // that are open
	psn      uint32
	packet   wire.Packet
	out      cm.Datagram
	event    cm.Event
}

func newGeneralServices(d *Device) *generalServices {
	for _, e := range d.endpoints {
		e.users++
		e.receivers++
	}
	return &generalServices{
		device: d, psn: admission.Random(),
		manager: cm.New(cm.Config{CAGUID: d.guid, MTU: pathMTU(d.cfg.InterfaceMTU)}),
	}
}

// handle takes a packet that names queue pair 1.
func (g *generalServices) handle(e *endpoint, dg *link.Datagram, now time.Duration) {
	d, p := g.device, &e.packet
	if p.Opcode == wire.CNP {
		d.main.counters.NotificationsIgnored++
		return
	}
	if p.Opcode != wire.UDSendOnly || p.DETH.SrcQP != admission.ManagementQPN || len(p.Payload) != mad.Len || !admission.DefaultPartition(p.PKey) {
		d.main.drops.malformed++
		return
	}
	path := e.pathTo(dg.Src)
	known := g.manager.Names(p.Payload, &path)
	if !d.admission.Messages.Admit(e.entry, dg.Src.Addr(), known, now) {
		d.main.drops.policed++
		return
	}
	if e.unknown = wire.NewFlow(dg.Src, e.socket.Addr()); !e.unknown.CheckICRC(dg.Data, uint16(dg.Segment)) {
		d.main.drops.badICRC++
		return
	}
	d.main.counters.ReceivedPackets++
	if d.capture != nil {
		d.capture.Packet(dg.Src, e.socket.Addr(), dg.Header, uint16(dg.Segment), now, dg.Data)
	}
	if p.DETH.QKey != cm.QKey {
		d.main.counters.QKeyViolations++
		return
	}
	if g.manager.Receive(p.Payload, path, now) && known {
		d.admission.Messages.Useful(dg.Src.Addr(), known)
	}
	g.settle()
}

// pathTo is the way of messages between the endpoint and a peer.
func (e *endpoint) pathTo(peer netip.AddrPort) cm.Path {
	return cm.Path{Local: e.socket.Addr(), Remote: peer, GIDIndex: e.index, SourcePort: e.socket.Source().Port()}
}

// expire does what is due.
func (g *generalServices) expire(now time.Duration) {
	g.manager.Expire(now)
	g.device.admission.Messages.Expire(now)
	g.settle()
}

// peerUnreachable ends what waits for an answer from there.
func (g *generalServices) peerUnreachable(peer unreachablePeer, now time.Duration) {
	g.manager.PeerUnreachable(peer.endpoint.pathTo(peer.addr), now)
	g.settle()
}

// settle sends what the manager has to send, and reports what has happened. Whatever
// calls the manager calls it afterwards.
func (g *generalServices) settle() {
	for g.manager.NextMAD(&g.out) {
		g.send(&g.out)
	}
	for g.manager.NextEvent(&g.event) {
		g.report(&g.event)
	}
	if at := g.manager.Deadline(); at != 0 {
		g.device.main.noteDeadline(at)
	}
}

func (g *generalServices) send(dg *cm.Datagram) {
	e := g.device.endpoints[dg.Path.GIDIndex]
	out := udpOutput{endpoint: e, peer: dg.Path.Remote, flow: wire.NewFlow(e.socket.Source(), dg.Path.Remote)}
	g.packet = wire.Packet{
		Opcode: wire.UDSendOnly, MigReq: true, PKey: 0xffff, DestQP: admission.ManagementQPN, PSN: g.psn & 0xffffff,
		DETH: wire.DETH{QKey: cm.QKey, SrcQP: admission.ManagementQPN},
	}
	g.psn++
	// By itself, so that an error is its own.
	_ = e.flush()
	out.Send(&g.packet, [][]byte{dg.MAD[:]}, len(dg.MAD))
	if err := e.flush(); errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EHOSTUNREACH) {
		g.manager.NoRoute(dg, g.device.now())
	}
}

// connectionManager implements verbs.CM.
type connectionManager struct {
	services    *generalServices
	handle      func(verbs.CMEvent)
	listeners   map[*cmListener]struct{}
	ids         map[*connectionID]struct{}
	memberships map[*membership]struct{}
	closed      bool
	lookUps     map[lookUp][]*connectionID // that wait; an entry is being looked up
	resolving   sync.WaitGroup
	ctx         context.Context // of what resolves
	cancel      context.CancelFunc
	patience    time.Duration // with other processes
}

// OpenCM implements verbs.CMDevice.
func (d *Device) OpenCM(handle func(verbs.CMEvent)) (verbs.CM, error) {
	const op = "open connection manager"
	if handle == nil {
		return nil, fmt.Errorf("%s: handle is nil: %w", op, verbs.ErrInvalid)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, d.closedError(op)
	}
	if d.services == nil {
		d.services = newGeneralServices(d)
	}
	d.services.managers++
	ctx, cancel := context.WithCancel(context.Background())
	return &connectionManager{
		services: d.services, handle: handle, ctx: ctx, cancel: cancel, patience: registry.Patience,
		listeners: make(map[*cmListener]struct{}), ids: make(map[*connectionID]struct{}),
		memberships: make(map[*membership]struct{}), lookUps: make(map[lookUp][]*connectionID),
	}, nil
}

// lock takes the locks of all shards for a call on an open manager. The caller unlocks.
func (c *connectionManager) lock(op string) (*Device, error) {
	d := c.services.device
	d.mu.Lock()
	if c.closed {
		return d, fmt.Errorf("%s: the connection manager: %w", op, verbs.ErrClosed)
	}
	return d, nil
}

// Close implements verbs.CM.
func (c *connectionManager) Close() error {
	for _, l := range c.close() { // other processes can hold it up
		c.resolving.Go(l.entries.Close)
	}
	c.cancel()
	c.resolving.Wait()
	return nil
}

// close returns the listeners, whose entries are to be closed without the lock.
func (c *connectionManager) close() (listeners []*cmListener) {
	d, err := c.lock("close")
	defer d.mu.Unlock()
	if err != nil {
		return nil // again
	}
	c.closed = true
	for l := range c.listeners {
		l.listener.Close(d.now())
		listeners = append(listeners, l)
	}
	for id := range c.ids {
		id.abandon()
	}
	for m := range c.memberships {
		if err := m.leave(); err != nil {
			d.log.Debug().Err(err).Msg("close connection manager")
		}
	}
	clear(c.listeners)
	clear(c.ids)
	c.services.managers--
	c.services.settle()
	return listeners
}

// service is the service of a port.
func service(t verbs.QPType, port uint16) cm.Service {
	if t == verbs.UD {
		return cm.Service{Space: cm.PortSpaceUDP, Port: port}
	}
	return cm.Service{Space: cm.PortSpaceTCP, Port: port}
}

// firstDynamicPort is the first that a manager chooses (RFC 6335 6).
const firstDynamicPort = 49152

// cmListener implements verbs.CMListener.
type cmListener struct {
	manager  *connectionManager
	listener *cm.Listener
	addr     netip.AddrPort
	entries  registry.Entries
}

// Listen implements verbs.CM.
func (c *connectionManager) Listen(p verbs.CMListen) (verbs.CMListener, error) {
	op := fmt.Sprintf("listen on %v", p.Addr)
	d, err := c.lock(op)
	defer d.mu.Unlock()
	if err != nil {
		return nil, err
	}
	addr, names, err := d.listenNames(p.Addr.Addr().Unmap())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	l := &cmListener{manager: c}
	params := cm.ListenParams{Addr: addr, Transport: p.Type, Backlog: p.Backlog, MTU: p.MTU, Value: l}
	ports := []uint16{p.Addr.Port()}
	if ports[0] == 0 {
		ports = dynamicPorts()
	}
	for _, port := range ports {
		params.Service = service(p.Type, port)
		if err = l.open(params, names); err == nil || !errors.Is(err, verbs.ErrInUse) {
			l.addr = netip.AddrPortFrom(addr, port)
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: device %s: %w", op, d.cfg.Name, err)
	}
	c.listeners[l] = struct{}{}
	for e := range names {
		if own := names[e]; own.Port() != wire.UDPPort {
			d.log.Warn().Stringer("address", l.addr).Uint16("udp_port", own.Port()).
				Msgf("another process has UDP port %d of %v: only Verbena's devices reach this listener there", wire.UDPPort, own.Addr())
		}
	}
	return l, nil
}

// listenNames are the addresses by which processes of this machine are to find a listener,
// each with the address and UDP port of the endpoint that it stands for, and the address to
// listen on. The unspecified address stands for all of the device's. 127.0.0.1 is also for a device of
// the loopback interface that has another of its addresses: programs need not know
// which.
func (d *Device) listenNames(addr netip.Addr) (netip.Addr, map[netip.Addr]netip.AddrPort, error) {
	names := make(map[netip.Addr]netip.AddrPort)
	addr = addr.WithZone("") // the device is on one interface
	if e := d.endpointAt(addr); e != nil {
		names[addr] = e.socket.Addr()
		return addr, names, nil
	}
	all := !addr.IsValid() || addr.IsUnspecified()
	localhost := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	for _, e := range d.endpoints {
		own := e.socket.Addr()
		if all {
			names[own.Addr()] = own
		}
		if own.Addr().Is4() && own.Addr().IsLoopback() {
			switch {
			case addr == localhost:
				return own.Addr(), map[netip.Addr]netip.AddrPort{localhost: own, own.Addr(): own}, nil
			case all:
				names[localhost] = own
			}
		}
	}
	if !all {
		return addr, nil, fmt.Errorf("device %s has the addresses %v: %w", d.cfg.Name, d.addresses(), verbs.ErrInvalid)
	}
	return addr, names, nil
}

// open takes a port.
func (l *cmListener) open(params cm.ListenParams, names map[netip.Addr]netip.AddrPort) (err error) {
	m := l.manager.services.manager
	if l.listener, err = m.Listen(params); err != nil {
		return err
	}
	for addr, device := range names {
		if err := l.entries.Add(portSpace(params.Transport), netip.AddrPortFrom(addr, params.Service.Port), device); err != nil {
			l.entries.Close()
			l.listener.Close(l.manager.services.device.now())
			if !errors.Is(err, verbs.ErrInUse) {
				return fmt.Errorf("tell the processes of this machine of port %d of %v: %w", params.Service.Port, addr, err)
			}
			return fmt.Errorf("a listener of this machine has port %d of %v: %w", params.Service.Port, addr, err)
		}
	}
	return nil
}

// portSpace is the one of a transport service.
func portSpace(t verbs.QPType) registry.Space {
	if t == verbs.UD {
		return registry.UDP
	}
	return registry.TCP
}

// dynamicPorts are some to try, at random.
func dynamicPorts() []uint16 {
	ports := make([]uint16, 64)
	for i := range ports {
		ports[i] = firstDynamicPort | uint16(admission.Random())
	}
	return ports
}

// Addr implements verbs.CMListener.
func (l *cmListener) Addr() netip.AddrPort { return l.addr }

// Close implements verbs.CMListener.
func (l *cmListener) Close() error {
	d, err := l.manager.lock("close listener")
	if err != nil {
		d.mu.Unlock()
		return nil // with its manager
	}
	delete(l.manager.listeners, l)
	l.listener.Close(d.now())
	l.manager.services.settle()
	d.mu.Unlock()
	l.entries.Close() // other processes can hold it up
	return nil
}

// endpointAt returns the endpoint with an address; nil: there is none.
func (d *Device) endpointAt(addr netip.Addr) *endpoint {
	for _, e := range d.endpoints {
		if e.socket.Addr().Addr() == addr {
			return e
		}
	}
	return nil
}

func (d *Device) addresses() (list []netip.Addr) {
	for _, e := range d.endpoints {
		list = append(list, e.socket.Addr().Addr())
	}
	return list
}

// endpointTo finds the endpoint from which a peer is reached: the one that the system's
// routes name, if the device has it, or else the one of the peer's kind whose address has
// most in common with the peer's.
func (d *Device) endpointTo(peer netip.Addr) (*endpoint, error) {
	if e := d.endpointAt(routes.Source(peer)); e != nil {
		return e, nil
	}
	var best *endpoint
	common := -1
	for _, e := range d.endpoints {
		own := e.socket.Addr().Addr()
		if own.Is4() != peer.Is4() || own.IsLoopback() != peer.IsLoopback() || own.IsLinkLocalUnicast() != peer.IsLinkLocalUnicast() {
			continue
		}
		if n := commonPrefix(own, peer); n > common {
			best, common = e, n
		}
	}
	if best == nil {
		err := fmt.Errorf("%w: device %s has the addresses %v", verbs.ErrNoRoute, d.cfg.Name, d.addresses())
		if ofThisMachine(peer) { // the way there is over the loopback interface, whatever device has it
			err = fmt.Errorf("%w, and %v is of another interface of this machine: use the same device at both ends", err, peer)
		}
		return nil, err
	}
	return best, nil
}

// commonPrefix is how many bits two addresses have in common from the first on.
func commonPrefix(a, b netip.Addr) int {
	x, y := a.As16(), b.As16()
	for i := range x {
		if diff := x[i] ^ y[i]; diff != 0 {
			return 8*i + bits.LeadingZeros8(diff)
		}
	}
	return 8 * len(x)
}
