package rdma

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/internal/profiling"
	"github.com/verbena-rdma/verbena/rdma/internal/deviceport"
	"github.com/verbena-rdma/verbena/rdma/internal/dialling"
	"github.com/verbena-rdma/verbena/verbs"
)

// DialConfig says how to dial.
type DialConfig struct {
	// PrivateData goes to the peer's program with the request: at most 56 bytes.
	PrivateData []byte
	// LocalAddr is the address of the device to dial from. Not valid: the address of
	// Config.Path.GIDIndex, or, if that is nil, the one that the system's routes choose.
	LocalAddr netip.Addr
	// Timeout is how long to try, from name resolution to the peer's answer. Zero:
	// Config.ConnectTimeout. Forever is possible.
	Timeout time.Duration
	// Once makes the first failure final. False: Dial tries again, until Timeout, while the
	// peer does not listen, does not answer, or believes that an earlier connection still
	// exists. It does not try again after a rejection.
	Once bool
	// UDPPort is the UDP port of the peer's device, if that is not 4791. Zero: 4791, or, for
	// addresses of this machine, the port that the system has recorded for the listener. Only
	// software devices have other ports.
	UDPPort uint16
	// OnResponse is called when the peer has accepted; Connection.AcceptData has what its
	// program sent. The program then calls Connection.Established, which makes the connection
	// Ready, or Close, at once or later. It runs on the engine's goroutine, inside Progress.
	// Nil: the connection is Ready as soon as the peer has accepted.
	OnResponse func(conn *Connection)
	// OnReject is called with the private data of the peer's rejection. If it returns nil,
	// Dial tries again, as when nobody listens; otherwise the connection fails with that
	// error. It runs as OnResponse does. Nil: the connection fails with a *verbs.CMError.
	OnReject func(data []byte) error
	// DisconnectData returns private data for the peer's program (Connection.DisconnectData), of
	// which 220 bytes are sent when this end tells the peer that the connection is Closed or
	// Failed. It is called on the engine's goroutine, more than once if the message cannot be
	// sent at first, and calls nothing itself. Nothing is sent if the peer ends the connection, or
	// if the device cannot send private data then, as librdmacm cannot.
	DisconnectData func(conn *Connection) []byte
}

// Dial connects, through the connection manager, to a peer that listens on an address: a
// Listener of this SDK, or any program that uses rdma_cm(7). The address is HOST:PORT. HOST is
// an IP address, a GID, or a name, whose addresses are tried in turn; IPv6 addresses and GIDs
// are in brackets. An unspecified address is that of the device.
//
// Dial does not wait. The connection is Connecting, then Ready, or Failed with the reason,
// which matches ErrTimeout, ErrNotListening, ErrUnreachable, ErrNoRoute or ErrRejected;
// errors.As finds the *verbs.CMError with the private data of a rejection. Close ends the
// attempts; until then, Connection.DialError is the reason why the latest one failed, or
// waits. A context that was in Starting becomes Running when the connection is Ready, or has ended.
//
// It is legal in Starting and Running, in callbacks too. It fails at once with ErrInvalid for
// an invalid address, ErrRange for too much private data, ErrFull while Config.MaxConnections
// exist, and ErrNotSupported on a device without a connection manager.
func (c *Connections) Dial(addr string, cfg DialConfig) (*Connection, error) {
	op := "dial " + addr
	if err := c.control.Owned(op); err != nil {
		return nil, err
	}
	host, port, err := c.splitTarget(addr, &cfg, maxDialData)
	if err != nil {
		return nil, fmt.Errorf("rdma: %s: %w", op, err)
	}
	if c.set.Transport == verbs.UC {
		return nil, fmt.Errorf("rdma: %s with context %q: %w", op, c.set.Name, errNotByAddress)
	}
	var d *dial
	conn, err := c.newConnection(op, func(conn *Connection) error {
		if err := c.manager.use(); err != nil {
			return err
		}
		d = newDial(conn, addr, port, cfg)
		conn.establishment = d
		return conn.initialize(c.set.Path.Port, 0)
	})
	if err != nil {
		return nil, err
	}
	conn.connecting()
	d.resolve(host)
	return conn, nil
}

// dial is the establishment of a connection that this end requests.
type dial struct {
	cmEnd
	dialling.Attempts
	limited dialling.Dial
	addr    string // as the program gave it
	port    uint16
	target  netip.AddrPort // of the attempt
	mtu     verbs.MTU      // the largest to ask for; zero: the port's
	cfg     DialConfig
	cancel  context.CancelFunc
	// portKnown: the connection manager has named the port that the attempt uses.
	portKnown bool
}

func newDial(conn *Connection, addr string, port uint16, cfg DialConfig) *dial {
	s := conn.ctx.set
	cfg.PrivateData = slices.Clone(cfg.PrivateData)
	d := &dial{cmEnd: cmEnd{conn: conn, disconnectData: cfg.DisconnectData}, addr: addr, port: port, mtu: s.Path.MTU, cfg: cfg, Attempts: conn.ctx.newAttempts(&cfg)}
	if !cfg.LocalAddr.IsValid() && s.port.Chosen() {
		d.cfg.LocalAddr = conn.ctx.port.IP()
	}
	conn.dialled = addr
	return d
}

// newAttempts starts the time-out of the configuration, or the context's.
func (c *core) newAttempts(cfg *DialConfig) dialling.Attempts {
	return dialling.Start(c.host, min(cmp.Or(cfg.Timeout, c.set.ConnectTimeout), longestTimeout), cfg.Once)
}

// resolve finds the addresses of the host; a name is resolved on another goroutine.
func (d *dial) resolve(host string) {
	d.schedule()
	if addr, err := netip.ParseAddr(host); err == nil {
		d.resolved([]netip.Addr{addr.Unmap()}, nil)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	d.cancel = cancel
	d.conn.ctx.manager.lookUp(ctx, host, d.resolved)
}

// lookUp finds the addresses of a host on another goroutine, and then calls f on the engine's.
func (m *connectionManager) lookUp(ctx context.Context, name string, f func([]netip.Addr, error)) {
	host.Go(m.core.host, &m.resolvers, func() {
		profiling.Label("name resolution", m.core.dev.Name(), "")
		list, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		m.runOnEngine(func() { f(list, err) })
	})
}

// resolved starts the attempts with the host's addresses.
func (d *dial) resolved(list []netip.Addr, err error) {
	if d.conn.state() != Connecting {
		return
	}
	if err != nil {
		d.conn.fail(err)
		return
	}
	if !d.Add(list, func(a netip.Addr) bool { return d.conn.ctx.sameFamily(d.cfg.LocalAddr, a) }) {
		d.conn.fail(fmt.Errorf("%w: the host has the addresses %v, and no address of %s is of their kind", ErrNoRoute, list, d.conn.ctx.dev.Name()))
		return
	}
	d.attempt()
}

// sameFamily reports whether the peer's address is of the same family as the local one, which
// need not be given.
func (c *core) sameFamily(local, peer netip.Addr) bool {
	return !local.IsValid() || local.Unmap().Is4() == peer.Is4()
}

// attempt dials the next of the host's addresses, as soon as other dials to it leave room.
func (d *dial) attempt() {
	d.target = netip.AddrPortFrom(d.Next(), d.port)
	out := d.conn.ctx.manager.limiter.Acquire(&d.limited, d.target, d.resume)
	d.schedule()
	if out {
		d.send()
	}
}

// resume goes on when other dials leave room.
func (d *dial) resume() {
	d.schedule()
	d.send()
}

// send dials the address of the attempt.
func (d *dial) send() {
	m := &d.conn.ctx.manager
	id, err := m.cm.Dial(verbs.CMDial{
		Addr: d.target, Local: netip.AddrPortFrom(d.cfg.LocalAddr, 0), Type: verbs.RC, UDPPort: d.cfg.UDPPort, MTU: d.mtu,
	})
	if err != nil {
		d.failed(err)
		return
	}
	d.id = id
	m.ids[id] = d
}

// event implements idOwner.
func (d *dial) event(ev *verbs.CMEvent) {
	conn := d.conn
	if conn.state() != Connecting {
		d.cmEnd.event(ev)
		return
	}
	if conn.establish != nil && ev.Type == verbs.CMDisconnected {
		d.disconnected(ev)
		return
	}
	if conn.transition.running {
		conn.transition.postpone(func() { conn.ctx.manager.event(ev) }) // the ID may be closed before
		return
	}
	var err error
	switch ev.Type {
	case verbs.CMUnresolved:
		if d.Others() {
			d.failed(ev.Err)
			return
		}
		d.Waiting = ev.Err
		conn.setDialError(ev.Err)
		return
	case verbs.CMResolved:
		d.Waiting = nil
		conn.setDialError(d.Last) // it waits no longer
		err = d.request()
	case verbs.CMConnectResponse:
		var attr verbs.QPAttr
		if attr, err = d.attributes(); err == nil {
			conn.connectLane(attr, func(err error) { d.connected(ev, err) })
		}
		if errors.Is(err, verbs.ErrState) {
			return // the peer has withdrawn, which the next event reports
		}
	case verbs.CMFailed:
		d.failed(ev.Err)
		return
	default:
		d.cmEnd.event(ev)
		return
	}
	switch {
	case err == nil:
	case errors.Is(err, ErrRange): // a setting is wrong, not the device
		conn.fail(err)
	default:
		conn.fail(conn.deviceError(err))
	}
}

// connected answers the peer's response, when the queue pair is up.
func (d *dial) connected(ev *verbs.CMEvent, err error) {
	conn := d.conn
	switch {
	case errors.Is(err, verbs.ErrState): // the peer has withdrawn, which the next event reports
		return
	case err != nil:
		conn.fail(conn.deviceError(err))
		return
	}
	conn.addrs = [2]netip.AddrPort{d.id.LocalAddr(), d.id.RemoteAddr()}
	conn.acceptData = ev.Param.PrivateData
	conn.ctx.manager.limiter.Release(&d.limited)
	if d.cfg.OnResponse == nil {
		_ = d.establish()
		return
	}
	conn.establish = d.establish
	conn.publish()
	d.cfg.OnResponse(conn)
}

// establish confirms the peer's response. The connection has the error.
func (d *dial) establish() error {
	d.conn.establish = nil
	switch err := d.id.Establish(); {
	case err == nil:
		d.conn.ready()
	case !errors.Is(err, verbs.ErrState): // else the peer has withdrawn, which the next event reports
		d.conn.fail(d.conn.deviceError(err))
	}
	return nil
}

// request sends the request, once the port is known.
func (d *dial) request() error {
	conn := d.conn
	init, _, err := d.id.Attr(verbs.QPInitialized)
	if err != nil {
		return err
	}
	if port, _ := d.id.PortGID(); port != conn.path.port || init.PKeyIndex != conn.path.pKeyIndex {
		if err := conn.lane.Reset(); err != nil {
			return err
		}
		if err := conn.initialize(port, init.PKeyIndex); err != nil {
			return err
		}
	}
	d.portKnown = true
	return d.id.Connect(d.param(d.cfg.PrivateData))
}

// pathProblem says what is wrong with the local address, at the port that the attempt uses, or at
// all ports if that is not known.
func (d *dial) pathProblem() string {
	if d.portKnown {
		return deviceport.Problem(d.conn.ctx.dev, d.conn.path.port, d.cfg.LocalAddr)
	}
	return deviceport.AnyProblem(d.conn.ctx.dev, d.conn.ctx.set.ports, d.cfg.LocalAddr)
}

// failed handles the failure of an attempt.
func (d *dial) failed(err error) {
	conn := d.conn
	conn.ctx.manager.limiter.Release(&d.limited)
	conn.ctx.manager.closeID(d.id)
	d.id, d.portKnown, d.told, conn.establish = nil, false, false, nil
	smaller, again := d.acceptSmallerMTU(err), dialling.Retryable(err)
	var failure *verbs.CMError
	if d.cfg.OnReject != nil && errors.As(err, &failure) && failure.Reason == verbs.CMRejectConsumer {
		if why := d.cfg.OnReject(failure.PrivateData); why != nil {
			conn.fail(why)
			return
		}
		again = true
	}
	if conn.state() != Connecting { // OnReject has closed it
		return
	}
	if !smaller && !d.Failed(err, again) {
		conn.fail(d.Last)
		return
	}
	conn.setDialError(d.Last)
	if err := d.prepareRetry(err); err != nil {
		conn.fail(conn.deviceError(err))
		return
	}
	if smaller {
		d.Repeat()
	}
	if smaller || d.Now() {
		d.attempt()
		return
	}
	d.schedule()
}

// acceptSmallerMTU reports whether the peer has rejected the path MTU and named a smaller one;
// the next attempt asks for that.
func (d *dial) acceptSmallerMTU(err error) bool {
	var failure *verbs.CMError
	if !errors.As(err, &failure) || failure.Reason != verbs.CMRejectInvalidMTU || failure.MTU == 0 {
		return false
	}
	asked := cmp.Or(d.mtu, d.conn.ctx.port.State().MTU)
	if !d.conn.ctx.set.cmPathMTU || failure.MTU >= asked {
		return false
	}
	d.mtu = failure.MTU
	return true
}

// prepareRetry makes the queue pair ready for another attempt.
func (d *dial) prepareRetry(after error) error {
	conn := d.conn
	conn.transition.cancel()
	conn.life.Takes(false)
	used := conn.path.mtu != 0 // the peer accepted, then withdrew
	conn.path.mtu, conn.path.maxReads, conn.peer = 0, 0, endpoint{}
	conn.publish()
	switch {
	case staleConnection(after):
		return conn.replaceQP()
	case used:
		return conn.reset()
	}
	return nil
}

// staleConnection reports whether the peer believes that the queue pair is still connected.
func staleConnection(err error) bool {
	var failure *verbs.CMError
	return errors.As(err, &failure) && failure.Reason == verbs.CMRejectStaleConnection
}

// due makes another attempt, or gives up.
func (d *dial) due(now time.Time) {
	d.conn.ctx.manager.limiter.Due(&d.limited, now)
	switch again, err := d.Due(now); {
	case err != nil:
		if why := d.pathProblem(); why != "" {
			err = fmt.Errorf("%w: %s", err, why)
		}
		d.conn.fail(err)
	case again:
		d.attempt()
	default:
		d.schedule()
	}
}

// schedule sets the connection's deadline to what comes first.
func (d *dial) schedule() {
	if d.conn.state() != Connecting {
		return
	}
	d.conn.deadline.Set(d.limited.Earliest(d.Deadline()))
}

// handle implements establishment.
func (d *dial) handle(ev event) {
	switch ev.kind {
	case deadlinePassed:
		d.due(ev.now)
	case messageReceived: // the peer may send only after this end has confirmed its response
		if d.conn.establish != nil {
			d.conn.fail(fmt.Errorf("%w: the peer sent a message before this program called Established", ErrMismatch))
		}
	}
}

// queuePairShut implements establishment.
func (d *dial) queuePairShut() {
	if d.cancel != nil {
		d.cancel()
	}
	d.conn.ctx.manager.limiter.Release(&d.limited)
	d.cmEnd.queuePairShut()
}
