package roce

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/verbena-rdma/verbena/internal/routes"
	"github.com/verbena-rdma/verbena/soft/internal/roce/admission"
	"github.com/verbena-rdma/verbena/soft/internal/roce/cm"
	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/soft/internal/roce/registry"
	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// idState is the phase of a connectionID before cm knows it, or where cm has no state.
type idState int

const (
	idResolving idState = iota // of Dial
	idResolved
	idRequested // a request has come
	idManaged   // Connect or Accept has been called: cm has the state
	idClosed
)

// connectionID implements verbs.CMID. It stands for a connection or, for UD, for a
// resolution or a request for one.
type connectionID struct {
	manager       *connectionManager
	listener      *cmListener // of a request
	kind          verbs.QPType
	state         idState
	path          cm.Path
	local, remote netip.AddrPort
	lookUpFailed  error      // why it is not known who of this machine listens at remote
	elsewhere     netip.Addr // of this machine, with a listener on that port; not valid: none is known
	psn           uint32     // of the first packet that the peer is to send
	mtu           verbs.MTU  // of a request that is sent

	conn       *cm.Conn
	resolution *cm.Resolution
	request    *cm.SIDRRequest
}

func (c *connectionManager) newID(kind verbs.QPType, path cm.Path) *connectionID {
	id := &connectionID{manager: c, kind: kind, path: path, psn: admission.Random() & 0xffffff}
	c.ids[id] = struct{}{}
	return id
}

// Dial implements verbs.CM.
func (c *connectionManager) Dial(p verbs.CMDial) (verbs.CMID, error) {
	op := fmt.Sprintf("dial %v", p.Addr)
	peer := netip.AddrPortFrom(p.Addr.Addr().Unmap(), p.Addr.Port())
	unfit := c.services.device.checkPeer(peer.Addr())
	switch addr := peer.Addr(); {
	case !addr.IsValid() || peer.Port() == 0:
		return nil, fmt.Errorf("%s: give the address and the port of one host: %w", op, verbs.ErrInvalid)
	case unfit != nil:
		return nil, fmt.Errorf("%s: %w: give the address and the port of one host", op, unfit)
	case p.MTU != 0 && !p.MTU.Valid():
		return nil, fmt.Errorf("%s: the MTU is %d; 256, 512, 1024, 2048 and 4096 are possible: %w", op, p.MTU, verbs.ErrInvalid)
	case p.Type < verbs.RC || p.Type > verbs.UD:
		return nil, fmt.Errorf("%s: no transport service %v: %w", op, p.Type, verbs.ErrNotSupported)
	}
	e, err := c.endpointFor(p.Local.Addr().Unmap(), peer.Addr())
	d, closed := c.lock(op)
	defer d.mu.Unlock()
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
	local := e.socket.Addr()
	id := c.newID(p.Type, e.pathTo(netip.AddrPortFrom(peer.Addr(), port)))
	id.mtu = pathMTU(c.services.device.cfg.InterfaceMTU)
	if p.MTU != 0 {
		id.mtu = min(id.mtu, p.MTU)
	}
	source := p.Local.Port()
	if source == 0 {
		source = dynamicPorts()[0]
	}
	id.local, id.remote = netip.AddrPortFrom(local.Addr(), source), peer
	key := lookUp{id.remote, p.Type, p.UDPPort == 0}
	ids, running := c.lookUps[key]
	c.lookUps[key] = append(ids, id)
	if !running {
		c.resolving.Go(func() { c.lookUp(key) })
	}
	return id, nil
}

// lookUp is what those who dial at the same moment look up together.
type lookUp struct {
	addr netip.AddrPort
	kind verbs.QPType
	find bool // the UDP port is not given
}

// lookUp resolves IDs, on a goroutine of its own, until there are none: those that come
// meanwhile are for the next turn, since a listener may have come before them.
func (c *connectionManager) lookUp(key lookUp) {
	d := c.services.device
	for {
		d.mu.Lock()
		ids := c.lookUps[key]
		if len(ids) == 0 || c.closed {
			delete(c.lookUps, key)
			d.mu.Unlock()
			return
		}
		c.lookUps[key] = nil
		d.mu.Unlock()
		device, elsewhere, err := c.find(key)
		d.mu.Lock()
		for _, id := range ids {
			id.elsewhere = elsewhere
			id.resolve(device, err, key.find)
		}
		d.mu.Unlock()
	}
}

// find finds out whether the address is a listener's of this machine, whose device may have
// another address or UDP port, or whether another address of this machine is.
func (c *connectionManager) find(key lookUp) (device netip.AddrPort, elsewhere netip.Addr, err error) {
	// Another process could answer for any address; let it do so for this machine's only.
	if !key.find || !ofThisMachine(key.addr.Addr()) {
		return device, elsewhere, registry.ErrNone
	}
	ctx, cancel := context.WithTimeout(c.ctx, c.patience)
	defer cancel()
	if device, err = registry.Find(ctx, portSpace(key.kind), key.addr); err == registry.ErrNone {
		elsewhere = findElsewhere(ctx, key)
	}
	return device, elsewhere, err
}

// ofThisMachine reports whether packets to an address do not leave the machine.
func ofThisMachine(addr netip.Addr) bool {
	return addr.IsLoopback() || routes.Source(addr) == addr.WithZone("")
}

// maxElsewhere is how many addresses of this machine are asked for.
const maxElsewhere = 16

// findElsewhere looks for a listener on the port at another address of this machine, such as
// 127.0.0.1 in place of an interface's. The error of the dial names it.
func findElsewhere(ctx context.Context, key lookUp) (found netip.Addr) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return found
	}
	for _, a := range list[:min(len(list), maxElsewhere)] {
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

// notListening is the error where nobody listens.
func (id *connectionID) notListening() error {
	if !id.elsewhere.IsValid() {
		return verbs.ErrNotListening
	}
	return fmt.Errorf("%w; a program of this machine listens at %v: dial it there, from a device with that address",
		verbs.ErrNotListening, netip.AddrPortFrom(id.elsewhere, id.remote.Port()))
}

// resolve takes what was found. Nobody listens on a loopback address that is not registered.
// The lock is held.
func (id *connectionID) resolve(device netip.AddrPort, err error, find bool) {
	if id.state != idResolving || id.manager.closed {
		return
	}
	if err != nil && err != registry.ErrNone {
		id.lookUpFailed = err
	}
	switch {
	case err == nil:
		id.path.Remote, id.remote = device, netip.AddrPortFrom(device.Addr(), id.remote.Port())
	case find && registry.Complete && id.remote.Addr().IsLoopback():
		// The device there, if any, is another process's, which may have no connection
		// manager and then would not answer.
		id.state = idManaged
		failed := &verbs.CMError{Step: verbs.CMStepConnect, Local: id.local, Remote: id.remote, Reason: verbs.CMRejectInvalidServiceID, Err: id.notListening()}
		if id.lookUpFailed != nil {
			failed.Step, failed.Reason, failed.Err = verbs.CMStepResolve, 0, fmt.Errorf("%w: %w", verbs.ErrUnreachable, id.lookUpFailed)
		}
		id.report(verbs.CMEvent{Type: verbs.CMFailed, Err: failed})
		return
	}
	id.state = idResolved
	id.report(verbs.CMEvent{Type: verbs.CMResolved})
}

// endpointFor finds the endpoint with that address or, if it names none, the one from
// which the peer is reached. The endpoints of a device never change.
func (c *connectionManager) endpointFor(local, peer netip.Addr) (*endpoint, error) {
	d := c.services.device
	if !local.IsValid() || local.IsUnspecified() {
		return d.endpointTo(peer)
	}
	e := d.endpointAt(local.WithZone(""))
	switch {
	case e == nil:
		return nil, fmt.Errorf("device %s has the addresses %v: %w", d.cfg.Name, d.addresses(), verbs.ErrInvalid)
	case local.Is4() != peer.Is4():
		return nil, fmt.Errorf("%v and %v are of different families: %w", local, peer, verbs.ErrInvalid)
	}
	return e, nil
}

// LocalAddr implements verbs.CMID.
func (id *connectionID) LocalAddr() netip.AddrPort { return id.local }

// RemoteAddr implements verbs.CMID. It is called on any goroutine, and changes until
// CMResolved.
func (id *connectionID) RemoteAddr() netip.AddrPort {
	d := id.manager.services.device
	d.mu.Lock()
	defer d.mu.Unlock()
	return id.remote
}

// PortGID implements verbs.CMID.
func (id *connectionID) PortGID() (port, sgidIndex int) { return 1, id.path.GIDIndex }

// lock takes the locks of all shards for a call. The caller unlocks.
func (id *connectionID) lock(call string) (*Device, error) {
	d, err := id.manager.lock(call)
	if err == nil && id.state == idClosed {
		err = fmt.Errorf("%s: the ID of the connection with %v: %w", call, id.remote, verbs.ErrClosed)
	}
	return d, err
}

// errState is for a call that the phase does not allow.
func (id *connectionID) errState(call, when string) error {
	return fmt.Errorf("%s the connection with %v: it is possible %s: %w", call, id.remote, when, verbs.ErrState)
}

// Attr implements verbs.CMID.
func (id *connectionID) Attr(to verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error) {
	d, err := id.lock("attributes")
	defer d.mu.Unlock()
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
		attr.RQPSN = id.psn // of a passive end before Accept
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
		return attr, 0, fmt.Errorf("attributes for %v: only Init, RTR and RTS have any: %w", to, verbs.ErrInvalid)
	}
	return attr, mask, nil
}

// readAtomic limits what can be outstanding to what the device has.
func readAtomic(n int) uint8 { return uint8(min(max(n, 0), transport.MaxReadAtomic)) }

// Connect implements verbs.CMID.
func (id *connectionID) Connect(p verbs.CMParam) error {
	d, err := id.lock("connect")
	defer d.mu.Unlock()
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
		}, d.now())
	} else {
		id.conn, err = m.Connect(cm.ConnectParams{
			Service: service(id.kind, id.remote.Port()), Path: id.path, SourcePort: id.local.Port(), Transport: id.kind,
			QPN: p.QPN, PSN: id.psn,
			ResponderResources: readAtomic(p.ResponderResources), InitiatorDepth: readAtomic(p.InitiatorDepth),
			RetryCount: p.RetryCount, RNRRetry: p.RNRRetryCount, SRQ: p.SRQ,
			PathMTU: id.mtu, PrivateData: p.PrivateData, Value: id,
		}, d.now())
	}
	if err != nil {
		return err
	}
	id.state = idManaged
	id.manager.services.settle()
	return nil
}

// Accept implements verbs.CMID.
func (id *connectionID) Accept(p verbs.CMParam) error {
	d, err := id.lock("accept")
	defer d.mu.Unlock()
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
		}, d.now())
	}
	if err != nil {
		return err
	}
	id.state = idManaged
	id.manager.services.settle()
	return nil
}

// Reject implements verbs.CMID.
func (id *connectionID) Reject(privateData []byte) error {
	d, err := id.lock("reject")
	defer d.mu.Unlock()
	if err != nil {
		return err
	}
	switch {
	case id.request != nil:
		err = id.request.Reply(cm.SIDRReply{Status: mad.SIDRRejected, PrivateData: privateData})
	case id.conn != nil:
		err = id.conn.Reject(cm.RejectParams{PrivateData: privateData}, d.now())
	default:
		err = id.errState("reject", "after CMConnectRequest or CMConnectResponse")
	}
	if err != nil {
		return err
	}
	id.manager.services.settle()
	return nil
}

// Establish implements verbs.CMID.
func (id *connectionID) Establish() error {
	return id.managed("establish", func(d *Device) error { return id.conn.Establish(nil, d.now()) })
}

// Received implements verbs.CMID.
func (id *connectionID) Received() error {
	return id.managed("establish", func(d *Device) error {
		id.conn.CommunicationEstablished(d.now())
		return nil
	})
}

// Disconnect implements verbs.CMID.
func (id *connectionID) Disconnect() error {
	return id.managed("disconnect", func(d *Device) error { return id.conn.Disconnect(cm.DisconnectParams{}, d.now()) })
}

// managed makes a call on a connection.
func (id *connectionID) managed(name string, call func(*Device) error) error {
	d, err := id.lock(name)
	defer d.mu.Unlock()
	if err != nil {
		return err
	}
	if id.conn == nil {
		return id.errState(name, "after Connect or CMConnectRequest, and not for UD")
	}
	if err := call(d); err != nil {
		return err
	}
	id.manager.services.settle()
	return nil
}

// Close implements verbs.CMID.
func (id *connectionID) Close() error {
	d, err := id.lock("close")
	defer d.mu.Unlock()
	if err != nil {
		return nil // again, or with its manager
	}
	id.abandon()
	id.manager.services.settle()
	return nil
}

// abandon ends whatever is under way.
func (id *connectionID) abandon() {
	switch {
	case id.conn != nil:
		id.conn.Close(id.manager.services.device.now())
	case id.resolution != nil:
		id.resolution.Close()
	case id.request != nil && id.state == idRequested:
		_ = id.request.Reply(cm.SIDRReply{Status: mad.SIDRRejected}) // it may have expired
	}
	id.state = idClosed
	delete(id.manager.ids, id)
}

// report reports an event of the ID.
func (id *connectionID) report(e verbs.CMEvent) {
	if id.state == idClosed || id.manager.closed {
		return
	}
	e.ID = id
	id.manager.handle(e)
}

// report hands an event on to the manager that it is for.
func (g *generalServices) report(e *cm.Event) {
	switch {
	case e.Type == cm.EventConnectRequest || e.Type == cm.EventSIDRRequest:
		g.reportRequest(e)
	case e.Conn != nil:
		g.reportConnection(e.Conn.Value.(*connectionID), e)
	case e.Resolution != nil:
		g.reportResolution(e.Resolution.Value.(*connectionID), e)
	}
}

func (g *generalServices) reportRequest(e *cm.Event) {
	l := e.Listener.Value.(*cmListener)
	var id *connectionID
	event := verbs.CMEvent{Type: verbs.CMConnectRequest, Listener: l}
	if e.Request != nil {
		id = l.manager.newID(verbs.UD, e.Request.Path())
		id.request, id.remote = e.Request, e.Request.PeerAddr()
	} else {
		p := e.Conn.Params()
		id = l.manager.newID(p.Transport, e.Conn.Path())
		id.conn, id.remote = e.Conn, e.Conn.PeerAddr()
		e.Conn.Value = id
		event.Param = connectionParam(&p)
	}
	id.listener, id.state = l, idRequested
	id.local = netip.AddrPortFrom(id.path.Local.Addr(), l.addr.Port())
	event.Param.PrivateData = e.PrivateData
	id.report(event)
}

// connectionParam is what the peer has said, as this end sees it.
func connectionParam(p *cm.Params) verbs.CMParam {
	return verbs.CMParam{
		QPN: p.RemoteQPN, ResponderResources: int(p.ResponderResources), InitiatorDepth: int(p.InitiatorDepth),
		RetryCount: p.RetryCount, RNRRetryCount: p.RNRRetry, SRQ: p.PeerSRQ,
	}
}

func (g *generalServices) reportConnection(id *connectionID, e *cm.Event) {
	p := e.Conn.Params()
	event := verbs.CMEvent{Param: connectionParam(&p)}
	event.Param.PrivateData = e.PrivateData
	step := verbs.CMStepConnect
	if e.Conn.Passive() {
		step = verbs.CMStepAccept
	}
	switch e.Type {
	case cm.EventConnectResponse:
		event.Type = verbs.CMConnectResponse
	case cm.EventEstablished:
		event.Type = verbs.CMEstablished
		g.device.admission.Messages.Useful(id.path.Remote.Addr(), false) // of the request
	case cm.EventRejected:
		event.Type, event.Err = verbs.CMFailed, id.rejected(step, e)
	case cm.EventUnreachable:
		event.Type, event.Err = verbs.CMFailed, id.unanswered(step, e.Cause)
	case cm.EventDisconnected:
		event.Type = verbs.CMDisconnected
	case cm.EventTimeWaitExit:
		event.Type = verbs.CMTimewaitExit
	}
	id.report(event)
}

func (g *generalServices) reportResolution(id *connectionID, e *cm.Event) {
	if e.Type == cm.EventUnreachable {
		id.report(verbs.CMEvent{Type: verbs.CMFailed, Err: id.unanswered(verbs.CMStepConnect, e.Cause)})
		return
	}
	if e.Status != mad.SIDRValid {
		failed := &verbs.CMError{Step: verbs.CMStepConnect, Local: id.local, Remote: id.remote, PrivateData: e.PrivateData, Err: verbs.ErrRejected}
		switch e.Status {
		case mad.SIDRNotSupported:
			failed.Reason, failed.Err = verbs.CMRejectInvalidServiceID, id.notListening()
		case mad.SIDRRejected:
			failed.Reason = verbs.CMRejectConsumer
		}
		id.report(verbs.CMEvent{Type: verbs.CMFailed, Err: failed})
		return
	}
	address := verbs.AddressAttr{DGID: verbs.GIDFromAddr(id.remote.Addr()), SGIDIndex: id.path.GIDIndex, Port: 1}
	if port := id.path.Remote.Port(); port != wire.UDPPort {
		address.UDPPort = port
	}
	id.report(verbs.CMEvent{
		Type: verbs.CMEstablished, Address: address,
		Param: verbs.CMParam{QPN: e.QPN, QKey: e.QKey, PrivateData: e.PrivateData},
	})
}

// rejected is the error of a rejection.
func (id *connectionID) rejected(step verbs.CMStep, e *cm.Event) error {
	err := &verbs.CMError{
		Step: step, Local: id.local, Remote: id.remote,
		Reason: verbs.CMRejectReason(e.Reason), PrivateData: e.PrivateData, Err: verbs.ErrRejected,
	}
	switch err.Reason {
	case verbs.CMRejectInvalidServiceID:
		err.Err = id.notListening()
	case verbs.CMRejectInvalidMTU:
		if len(e.Info) > 0 {
			err.MTU = mad.MTUOf(e.Info[0])
		}
	}
	if id.lookUpFailed != nil { // another device of this machine may have answered
		err.Err = fmt.Errorf("%w; %w", err.Err, id.lookUpFailed)
	}
	return err
}

// unanswered is the error of a handshake that came to no end.
func (id *connectionID) unanswered(step verbs.CMStep, cause cm.Cause) error {
	err := verbs.ErrUnreachable
	switch cause {
	case cm.CauseTimeout: // is what it says
	case cm.CauseNoRoute:
		return &verbs.CMError{Step: step, Local: id.local, Remote: id.remote, Err: fmt.Errorf("%w: %v", verbs.ErrNoRoute, cause)}
	default:
		err = fmt.Errorf("%w: %v", err, cause)
	}
	if local := id.path.Local; local.Port() != wire.UDPPort && id.path.Remote.Port() == wire.UDPPort {
		err = fmt.Errorf("%w; this device has UDP port %d, since another process has port %d of %v, and other than Verbena's devices answer to that one only: end that process, or use another address",
			err, local.Port(), wire.UDPPort, local.Addr())
	}
	if id.lookUpFailed != nil {
		err = fmt.Errorf("%w; %w", err, id.lookUpFailed)
	}
	return &verbs.CMError{Step: step, Local: id.local, Remote: id.remote, Err: err}
}
