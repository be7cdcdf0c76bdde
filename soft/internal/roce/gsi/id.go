package gsi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/internal/routes"
	"github.com/verbena-rdma/verbena/soft/internal/roce/cm"
	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/soft/internal/roce/registry"
	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// idState is the phase of a connectionID, for the time before cm knows it and for what cm does
// not track.
type idState int

const (
	idResolving idState = iota // after Dial
	idResolved
	idRequested  // a request has arrived
	idInProgress // after Connect or Accept: cm tracks the state
	idClosed
)

// connectionID implements verbs.CMID. It is a connection or, for UD, a resolution or a request
// for one.
type connectionID struct {
	manager       *Manager
	listener      *listener // of a request
	kind          verbs.QPType
	state         idState
	path          cm.Path
	local, remote netip.AddrPort
	lookUpFailed  error      // why the look-up for a listener of this machine at remote failed
	otherAddr     netip.Addr // address of this machine with a listener on that port; not valid: none known
	psn           uint32     // first PSN that the peer is to send
	mtu           verbs.MTU  // for the request to send

	conn       *cm.Conn
	resolution *cm.Resolution
	request    *cm.SIDRRequest
}

func (c *Manager) newID(kind verbs.QPType, path cm.Path) *connectionID {
	id := &connectionID{manager: c, kind: kind, path: path, psn: host.Uint32(c.services.cfg.Network) & 0xffffff}
	c.ids[id] = c.nextSerial()
	return id
}

// Dial implements verbs.CM.
func (c *Manager) Dial(p verbs.CMDial) (verbs.CMID, error) {
	op := fmt.Sprintf("dial %v", p.Addr)
	peer := netip.AddrPortFrom(p.Addr.Addr().Unmap(), p.Addr.Port())
	peerErr := c.services.cfg.CheckPeer(peer.Addr())
	switch addr := peer.Addr(); {
	case !addr.IsValid() || peer.Port() == 0:
		return nil, fmt.Errorf("%s: the address and the port of one host are needed: %w", op, verbs.ErrInvalid)
	case peerErr != nil:
		return nil, fmt.Errorf("%s: the address and the port of one host are needed: %w", op, peerErr)
	case p.MTU != 0 && !p.MTU.Valid():
		return nil, fmt.Errorf("%s: the MTU is %d, must be 256, 512, 1024, 2048 or 4096: %w", op, p.MTU, verbs.ErrInvalid)
	case p.Type < verbs.RC || p.Type > verbs.UD:
		return nil, fmt.Errorf("%s: transport service %v: %w", op, p.Type, verbs.ErrNotSupported)
	}
	e, err := c.services.endpointFor(p.Local.Addr().Unmap(), peer.Addr())
	// Any process can register any address; ask only about addresses of this machine.
	ask := p.UDPPort == 0 && !c.services.cfg.Network.Simulated() && routes.Local(peer.Addr())
	g, closed := c.lock(op)
	defer g.cfg.Lock.Unlock()
	switch {
	case closed != nil:
		return nil, closed
	case err != nil:
		return nil, &verbs.CMError{Step: verbs.CMStepResolve, Local: p.Local, Remote: p.Addr, Err: err}
	}
	port := p.UDPPort
	if port == 0 {
		port = wire.UDPPort
	}
	local := c.services.cfg.Endpoints[e].Addr()
	id := c.newID(p.Type, c.services.pathTo(e, netip.AddrPortFrom(peer.Addr(), port)))
	id.mtu = c.services.cfg.MTU
	if p.MTU != 0 {
		id.mtu = min(id.mtu, p.MTU)
	}
	source := p.Local.Port()
	if source == 0 {
		source = g.dynamicPort()
	}
	id.local, id.remote = netip.AddrPortFrom(local.Addr(), source), peer
	if !ask {
		id.resolve(netip.AddrPort{}, registry.ErrNotRegistered, p.UDPPort == 0)
		return id, nil
	}
	if device, ok := c.known.Look(portSpace(p.Type), peer); ok {
		id.resolve(device, nil, true)
		return id, nil
	}
	key := lookUp{peer, p.Type}
	ids, running := c.lookUps[key]
	c.lookUps[key] = append(ids, id)
	if !running {
		c.background(func() { c.lookUp(key) })
	}
	return id, nil
}

// lookUp identifies a look-up, which concurrent dials of the same address share.
type lookUp struct {
	addr netip.AddrPort
	kind verbs.QPType
}

// lookUp resolves the IDs that wait for a key, on a goroutine of its own, until there are
// none. IDs that arrive meanwhile wait for the next look-up, since a listener may have
// registered before them. If the listener's process does not respond, lookUp tries again until it
// does, or until all IDs are closed. It does not try UDP port 4791 meanwhile: another process, which
// has no such listener, may have it.
func (c *Manager) lookUp(key lookUp) {
	g := c.services
	for {
		g.cfg.Lock.Lock()
		ids := c.lookUps[key]
		if len(ids) == 0 || c.closed {
			delete(c.lookUps, key)
			g.cfg.Lock.Unlock()
			return
		}
		c.lookUps[key] = nil
		g.cfg.Lock.Unlock()
		device, otherAddr, err := c.find(key)
		again := errors.Is(err, registry.ErrNoResponse)
		if again {
			c.pause()
		}
		g.cfg.Lock.Lock()
		for _, id := range ids {
			if id.state != idResolving || c.closed {
				continue
			}
			if again {
				c.lookUps[key] = append(c.lookUps[key], id)
				id.report(verbs.CMEvent{Type: verbs.CMUnresolved, Err: id.unresolvedError(err)})
				continue
			}
			id.otherAddr = otherAddr
			id.resolve(device, err, true)
		}
		g.cfg.Lock.Unlock()
	}
}

// lookUpPause is the pause before another look-up of a process that does not respond.
const lookUpPause = 50 * time.Millisecond

func (c *Manager) pause() {
	select {
	case <-time.After(lookUpPause):
	case <-c.ctx.Done():
	}
}

// unresolvedError returns the error of a dial whose look-up has failed.
func (id *connectionID) unresolvedError(err error) error {
	return &verbs.CMError{Step: verbs.CMStepResolve, Local: id.local, Remote: id.remote, Err: fmt.Errorf("%w: %w", verbs.ErrUnreachable, err)}
}

// find looks for a listener of this machine at the address; its device may have another
// address or UDP port. If there is none, it looks at other addresses of this machine.
func (c *Manager) find(key lookUp) (device netip.AddrPort, otherAddr netip.Addr, err error) {
	ctx, cancel := context.WithTimeout(c.ctx, c.LookUpTimeout)
	defer cancel()
	if device, err = c.known.Find(ctx, portSpace(key.kind), key.addr); err == registry.ErrNotRegistered {
		otherAddr = findAtOtherAddr(ctx, key)
	}
	return device, otherAddr, err
}

// maxOtherAddrs bounds the addresses of this machine that findAtOtherAddr tries.
const maxOtherAddrs = 16

// findAtOtherAddr looks for a listener on the port at another address of this machine, such as
// 127.0.0.1 instead of an interface's. The error of the dial names it.
func findAtOtherAddr(ctx context.Context, key lookUp) (found netip.Addr) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return found
	}
	for _, a := range list[:min(len(list), maxOtherAddrs)] {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil || prefix.Addr() == key.addr.Addr() {
			continue
		}
		if _, err := registry.Find(ctx, portSpace(key.kind), netip.AddrPortFrom(prefix.Addr(), key.addr.Port())); err == nil {
			return prefix.Addr()
		}
	}
	return found
}

// errNotListening returns the error of a dial to an address without a listener.
func (id *connectionID) errNotListening() error {
	if !id.otherAddr.IsValid() {
		return verbs.ErrNotListening
	}
	return fmt.Errorf("%w; a program on this machine listens at %v: dial that address, from a device that has it",
		verbs.ErrNotListening, netip.AddrPortFrom(id.otherAddr, id.remote.Port()))
}

// resolve handles the result of a look-up. find: the UDP port was not given, so that a loopback
// address that is not registered has no listener. The lock is held.
func (id *connectionID) resolve(device netip.AddrPort, err error, find bool) {
	if err != nil && err != registry.ErrNotRegistered {
		id.lookUpFailed = err
	}
	switch {
	case err == nil:
		id.path.Remote, id.remote = device, netip.AddrPortFrom(device.Addr(), id.remote.Port())
	case find && registry.Complete && id.remote.Addr().IsLoopback():
		// The device there, if any, belongs to another process, which may have no connection
		// manager and then would not respond.
		id.state = idInProgress
		var failed error = &verbs.CMError{Step: verbs.CMStepConnect, Local: id.local, Remote: id.remote, Reason: verbs.CMRejectInvalidServiceID, Err: id.errNotListening()}
		if id.lookUpFailed != nil {
			failed = id.unresolvedError(id.lookUpFailed)
		}
		id.report(verbs.CMEvent{Type: verbs.CMFailed, Err: failed})
		return
	}
	id.state = idResolved
	id.report(verbs.CMEvent{Type: verbs.CMResolved})
}

// endpointFor returns the index of the endpoint with the local address or, if that is
// unspecified, of the one that reaches the peer. The endpoints of a device never change.
func (g *Services) endpointFor(local, peer netip.Addr) (index int, err error) {
	if !local.IsValid() || local.IsUnspecified() {
		return g.endpointTo(peer)
	}
	e := g.endpointAt(local.WithZone(""))
	switch {
	case e < 0:
		return 0, fmt.Errorf("%v is not an address of device %s, which has %v: %w", local, g.cfg.Device, g.addresses(), verbs.ErrInvalid)
	case local.Is4() != peer.Is4():
		return 0, fmt.Errorf("%v and %v have different address families: %w", local, peer, verbs.ErrInvalid)
	}
	return e, nil
}

// LocalAddr implements verbs.CMID.
func (id *connectionID) LocalAddr() netip.AddrPort { return id.local }

// RemoteAddr implements verbs.CMID. Any goroutine may call it. The address may change until
// CMResolved.
func (id *connectionID) RemoteAddr() netip.AddrPort {
	g := id.manager.services
	g.cfg.Lock.Lock()
	defer g.cfg.Lock.Unlock()
	return id.remote
}

// PortGID implements verbs.CMID.
func (id *connectionID) PortGID() (port, sgidIndex int) { return 1, id.path.GIDIndex }

// lock takes the locks of all shards for a call. The caller unlocks them.
func (id *connectionID) lock(call string) (*Services, error) {
	g, err := id.manager.lock(call)
	if err == nil && id.state == idClosed {
		err = fmt.Errorf("%s: the ID of the connection with %v: %w", call, id.remote, verbs.ErrClosed)
	}
	return g, err
}

// errState returns the error of a call that the phase does not allow.
func (id *connectionID) errState(call, when string) error {
	return fmt.Errorf("%s the connection with %v: the call is possible only %s: %w", call, id.remote, when, verbs.ErrState)
}

// Attr implements verbs.CMID.
func (id *connectionID) Attr(to verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error) {
	g, err := id.lock("attributes")
	defer g.cfg.Lock.Unlock()
	if err != nil {
		return verbs.QPAttr{}, 0, err
	}
	if id.kind == verbs.UD {
		return id.datagramAttr(to)
	}
	if id.conn == nil {
		if to == verbs.QPInitialized {
			return initAttr(verbs.AccessRemoteWrite)
		}
		return verbs.QPAttr{}, 0, id.errState("attributes of", "after the peer's response")
	}
	attr, mask, err := id.conn.QPAttr(to)
	if mask&verbs.QPAttrRQPSN != 0 {
		attr.RQPSN = id.psn // QPAttr has none for a passive end before Accept
	}
	return attr, mask, err
}

func initAttr(access verbs.Access) (verbs.QPAttr, verbs.QPAttrMask, error) {
	return verbs.QPAttr{State: verbs.QPInitialized, Port: 1, Access: access},
		verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess, nil
}

func (id *connectionID) datagramAttr(to verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error) {
	attr, mask := verbs.QPAttr{State: to}, verbs.QPAttrState
	switch to {
	case verbs.QPInitialized:
		attr.Port, attr.QKey = 1, cm.QKeyUDP
		mask |= verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrQKey
	case verbs.QPReadyToReceive:
	case verbs.QPReadyToSend:
		attr.SQPSN = id.psn
		mask |= verbs.QPAttrSQPSN
	default:
		return attr, 0, fmt.Errorf("attributes for %v: the state must be Init, RTR or RTS: %w", to, verbs.ErrInvalid)
	}
	return attr, mask, nil
}

// readAtomic clamps a number of outstanding reads and atomics to the device's limits.
func readAtomic(n int) uint8 { return uint8(min(max(n, 0), transport.MaxReadAtomic)) }

// Connect implements verbs.CMID.
func (id *connectionID) Connect(p verbs.CMParam) error {
	g, err := id.lock("connect")
	defer g.cfg.Lock.Unlock()
	if err != nil {
		return err
	}
	if id.state != idResolved {
		return id.errState("connect", "once, after CMResolved")
	}
	m := id.manager.services.manager
	if id.kind == verbs.UD {
		id.resolution, err = m.Resolve(cm.ResolveParams{
			Service: service(id.kind, id.remote.Port()), Path: id.path, SourcePort: id.local.Port(),
			PrivateData: p.PrivateData, Value: id,
		}, g.cfg.Now())
	} else {
		id.conn, err = m.Connect(cm.ConnectParams{
			Service: service(id.kind, id.remote.Port()), Path: id.path, SourcePort: id.local.Port(), Transport: id.kind,
			QPN: p.QPN, PSN: id.psn,
			ResponderResources: readAtomic(p.ResponderResources), InitiatorDepth: readAtomic(p.InitiatorDepth),
			RetryCount: p.RetryCount, RNRRetry: p.RNRRetryCount, SRQ: p.SRQ,
			PathMTU: id.mtu, PrivateData: p.PrivateData, Value: id,
		}, g.cfg.Now())
	}
	if err != nil {
		return err
	}
	id.state = idInProgress
	id.manager.services.processOutput()
	return nil
}

// Accept implements verbs.CMID.
func (id *connectionID) Accept(p verbs.CMParam) error {
	g, err := id.lock("accept")
	defer g.cfg.Lock.Unlock()
	if err != nil {
		return err
	}
	if id.state != idRequested {
		return id.errState("accept", "once, after CMConnectRequest")
	}
	if id.request != nil {
		qkey := p.QKey
		if qkey == 0 {
			qkey = cm.QKeyUDP
		}
		err = id.request.Reply(cm.SIDRReply{QPN: p.QPN, QKey: qkey, PrivateData: p.PrivateData})
	} else {
		err = id.conn.Accept(cm.AcceptParams{
			QPN: p.QPN, PSN: id.psn,
			ResponderResources: readAtomic(p.ResponderResources), InitiatorDepth: readAtomic(p.InitiatorDepth),
			RNRRetry: p.RNRRetryCount, SRQ: p.SRQ, PrivateData: p.PrivateData,
		}, g.cfg.Now())
	}
	if err != nil {
		return err
	}
	id.state = idInProgress
	id.manager.services.processOutput()
	return nil
}

// Reject implements verbs.CMID.
func (id *connectionID) Reject(privateData []byte) error {
	g, err := id.lock("reject")
	defer g.cfg.Lock.Unlock()
	if err != nil {
		return err
	}
	switch {
	case id.request != nil:
		err = id.request.Reply(cm.SIDRReply{Status: mad.SIDRRejected, PrivateData: privateData})
	case id.conn != nil:
		err = id.conn.Reject(cm.RejectParams{PrivateData: privateData}, g.cfg.Now())
	default:
		err = id.errState("reject", "after CMConnectRequest or CMConnectResponse")
	}
	if err != nil {
		return err
	}
	id.manager.services.processOutput()
	return nil
}

// Establish implements verbs.CMID.
func (id *connectionID) Establish() error {
	return id.onConnection("establish", func(g *Services) error { return id.conn.Establish(nil, g.cfg.Now()) })
}

// Received implements verbs.CMID.
func (id *connectionID) Received() error {
	return id.onConnection("establish", func(g *Services) error {
		id.conn.CommunicationEstablished(g.cfg.Now())
		return nil
	})
}

// Disconnect implements verbs.CMID.
func (id *connectionID) Disconnect() error { return id.DisconnectWith(nil) }

// DisconnectWith implements optional.DisconnectDataCMID.
func (id *connectionID) DisconnectWith(privateData []byte) error {
	return id.onConnection("disconnect", func(g *Services) error {
		return id.conn.Disconnect(cm.DisconnectParams{PrivateData: privateData}, g.cfg.Now())
	})
}

// DisconnectHeld implements optional.HeldDisconnectCMID.
func (id *connectionID) DisconnectHeld() bool {
	g, err := id.lock("ask for a disconnect")
	defer g.cfg.Lock.Unlock()
	return err == nil && id.conn != nil && id.conn.State() == cm.StateDREQReceived
}

// onConnection makes a call on a connection.
func (id *connectionID) onConnection(name string, call func(*Services) error) error {
	g, err := id.lock(name)
	defer g.cfg.Lock.Unlock()
	if err != nil {
		return err
	}
	if id.conn == nil {
		return id.errState(name, "after Connect or CMConnectRequest, and not for UD")
	}
	if err := call(g); err != nil {
		return err
	}
	id.manager.services.processOutput()
	return nil
}

// Close implements verbs.CMID.
func (id *connectionID) Close() error {
	g, err := id.lock("close")
	defer g.cfg.Lock.Unlock()
	if err != nil {
		return nil // closed before, or with its manager
	}
	id.abandon()
	id.manager.services.processOutput()
	return nil
}

// abandon ends what is in progress, and closes the ID.
func (id *connectionID) abandon() {
	switch {
	case id.conn != nil:
		id.conn.Close(id.manager.services.cfg.Now())
	case id.resolution != nil:
		id.resolution.Close()
	case id.request != nil && id.state == idRequested:
		_ = id.request.Reply(cm.SIDRReply{Status: mad.SIDRRejected}) // it may have expired
	}
	id.state = idClosed
	delete(id.manager.ids, id)
}
