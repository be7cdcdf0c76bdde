package rdma

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma/internal/deadline"
	"github.com/verbena-rdma/verbena/rdma/internal/life"
	"github.com/verbena-rdma/verbena/rdma/internal/receiving"
	"github.com/verbena-rdma/verbena/verbs"
)

// ConnectionState is the state of a connection.
type ConnectionState int

// The states of a connection.
const (
	Exported   ConnectionState = iota // waits for Connect, or for ConnectRequest.Accept
	Connecting                        // waits for the peer
	Ready                             // both ends are connected: tasks submitted so far begin
	Failed                            // Err has the reason; Close makes room for another
	Closed                            // by Close, by Stop, or by the peer: then Err matches ErrPeerClosed
)

var connectionStates = [...]string{"Exported", "Connecting", "Ready", "Failed", "Closed"}

// String names the state.
func (s ConnectionState) String() string {
	if s >= 0 && int(s) < len(connectionStates) {
		return connectionStates[s]
	}
	return "ConnectionState(" + strconv.Itoa(int(s)) + ")"
}

// connectionView is the part of a connection that any goroutine may read.
type connectionView struct {
	state          ConnectionState
	err            error
	qpn            uint32
	peerQPN        uint32
	local, peer    netip.AddrPort
	acceptData     []byte
	disconnectData []byte
	mtu            verbs.MTU
	maxReads       int
	qp             verbs.QP
}

// publish shows the present connection to other goroutines.
func (conn *Connection) publish() {
	v := &connectionView{
		state: conn.state(), err: conn.err, qpn: conn.lane.Num(), peerQPN: conn.peer.qpn, local: conn.addrs[0], peer: conn.addrs[1],
		acceptData: conn.acceptData, disconnectData: conn.disconnectData, mtu: conn.path.mtu, maxReads: conn.path.maxReads, qp: conn.lane.QP(),
	}
	if !v.local.IsValid() {
		v.local = conn.local.addr()
	}
	if !v.peer.IsValid() {
		v.peer = conn.peer.addr()
	}
	conn.published.Store(v)
}

// view returns what was published last.
func (conn *Connection) view() *connectionView { return conn.published.Load() }

// usable reports whether tasks run on the connection, or may in future.
func (s ConnectionState) usable() bool { return s == Exported || s == Connecting || s == Ready }

// Connection is one end of a connection, RC or UC. It belongs to the goroutine that drives the
// engine; State says what other goroutines may call. A Connection that has ended is not used
// again; tasks can be moved to another one with SetConnection.
type Connection struct {
	ctx       *Connections
	id        uint64
	slot      int
	lane      *lane.Lane
	life      life.Life
	err       error
	published atomic.Pointer[connectionView] // for all goroutines
	userData  any

	ends
	dialInfo
	path          qpPath
	readSubmitted bool // a read, an atomic or an atomic write was submitted
	windows       fifo.List[*Window]

	establishment establishment
	start         func()       // on a connection of Export: begins to connect
	establish     func() error // what Established does; nil: nothing
	accepted      *acceptedEnd // nil: not made by a Listener
	signal        signalRequest
	transition    transition // of its queue pair, to Ready to Send
	awaited       bool       // the context becomes Running when it is Ready
	interrupted   bool       // the peer closed it while requests were under way
	silentChecks  int        // since the last sign of life, or keepalive; heard starts them anew
	deadline      deadline.Deadline

	receives    receiving.Queue // on a device without shared receive queues, or with ReceivePerConnection
	destruction destruction
}

// ends is what is known of the two ends.
type ends struct {
	local, peer endpoint
	addrs       [2]netip.AddrPort // of this end and the peer, if no descriptors have them
	acceptData  []byte            // private data of the peer's acceptance
	// disconnectData is the private data with which the peer has ended the connection.
	disconnectData []byte
}

// dialInfo is of a connection that was dialled.
type dialInfo struct {
	dialled   string                // by the program
	dialError atomic.Pointer[error] // see DialError
}

// qpPath is what the queue pair is connected with.
type qpPath struct {
	port      int // of the device
	pKeyIndex int // in the table of that port
	mtu       verbs.MTU
	maxReads  int
}

// destruction is the place of a connection among those to be destroyed when their completions have
// been handled.
type destruction struct {
	place     fifo.Node[*Connection]
	handledBy uint64 // barrier of the lanes at which no completion of it is left
}

// state is the present state.
func (conn *Connection) state() ConnectionState {
	switch p := conn.life.Phase(); p {
	case life.Exported, life.Connecting, life.Ready:
		return ConnectionState(p)
	case life.Failed:
		return Failed
	}
	return Closed
}

// heard notes a sign of life of the peer.
func (conn *Connection) heard() { conn.silentChecks = -1 }

// loopback reports whether the connection is its own peer.
func (conn *Connection) loopback() bool {
	return conn.local.nonce != 0 && conn.local.compare(&conn.peer) == 0
}

// Export makes one end of a connection and its descriptor, in binary form (descriptor.Armor
// makes it text), for the peer's Connect. A descriptor is for one peer and one connection.
// Keep it as secret as the memory that it gives access to.
//
// It is legal in Starting and Running, in callbacks too. It fails with ErrFull while
// Config.MaxConnections exist; a place is free again when a connection that was
// closed is reported Closed. While another goroutine drives the engine it fails with
// pe.ErrBusy, and so do Connect and Close. Other errors are the device's.
func (c *Connections) Export() (*Connection, []byte, error) {
	var desc []byte
	conn, err := c.newConnection("export a connection", func(conn *Connection) (err error) {
		desc, err = conn.export()
		return err
	})
	return conn, desc, err
}

// newConnection makes a connection in the state Exported, with a queue pair in the state
// Reset. setUp does the rest, and sets the establishment. op is for errors.
func (c *Connections) newConnection(op string, setUp func(*Connection) error) (*Connection, error) {
	if err := c.control.Owned(op); err != nil {
		return nil, err
	}
	if err := c.control.Require(op, pe.Starting, pe.Running); err != nil {
		return nil, err
	}
	if !c.hasRoom() {
		return nil, fmt.Errorf("rdma: %s in context %q: %w: %s", op, c.set.Name, ErrFull, c.fullAdvice())
	}
	conn := &Connection{ctx: c, slot: c.nextSlot(), id: c.serial}
	conn.deadline.Init(&c.deadlines.Deadlines, conn.due)
	conn.receives.Owner, conn.destruction.place.Value = (*laneOwner)(conn), conn
	err := conn.openLane()
	if err == nil {
		err = conn.receives.Open(&c.receives.Receives, conn.slot, conn.lane)
	}
	if err == nil {
		err = setUp(conn)
	}
	if err != nil {
		if conn.lane != nil {
			err = errors.Join(err, conn.lane.Close())
			conn.returnReceives()
			err = errors.Join(err, conn.receives.Close(c.kept != nil))
		}
		return nil, fmt.Errorf("rdma: %s in context %q: %w", op, c.set.Name, err)
	}
	c.serial++
	c.occupy(conn)
	c.byQPN[conn.lane.Num()] = conn
	conn.signal.conn = conn
	c.lanes.Add(&conn.signal.send, &conn.signal)
	conn.publish()
	c.usable++
	c.interrupted = nil // another connection follows
	if c.State() == pe.Starting {
		conn.awaited = true
		c.awaited++
	}
	return conn, nil
}

// openLane makes the queue pair.
func (conn *Connection) openLane() (err error) {
	c, s := conn.ctx, conn.ctx.set
	init := verbs.QPInit{Type: s.Transport, SRQ: c.receives.SRQ(), MaxSendSGE: s.sendSGE, MaxInline: s.inline, AdaptiveRetransmission: s.adaptive, SilenceTimeout: s.SilenceTimeout}
	if c.receives.SRQ() == nil {
		init.MaxRecvWR = 1
	}
	if n := c.receives.QueueSize(); n > 0 {
		init.MaxRecvWR, init.MaxRecvSGE = n, s.recvSGE
		if c.receives.Each() > 0 {
			init.MaxRecvSGE = 1
		}
	}
	conn.lane, err = c.lanes.Open(s.PD, init, c.lanes.depth(), (*laneOwner)(conn))
	return err
}

// takeReceives lets a connection with a receive queue take receives: see receiving.Queue.Start.
func (conn *Connection) takeReceives() {
	conn.receives.Start()
	conn.ctx.receives.post()
}

// returnReceives gives the receives of a queue pair that was reset or destroyed to other
// connections.
func (conn *Connection) returnReceives() {
	conn.receives.Return()
	conn.ctx.wake()
}

// export takes the queue pair to Init, and makes the descriptor.
func (conn *Connection) export() ([]byte, error) {
	s, port := conn.ctx.set, conn.ctx.port.State()
	if err := conn.initialize(s.Path.Port, 0); err != nil {
		return nil, err
	}
	signal, word := conn.newSignal()
	if err := word.register(conn); err != nil {
		return nil, err
	}
	var random [12]byte
	conn.ctx.host.Random(random[:])
	conn.local = endpoint{
		transport: s.Transport,
		gidType:   port.GID.Type,
		gid:       port.GID.GID,
		udpPort:   cmp.Or(port.GID.UDPPort, roceUDPPort),
		source:    port.GID.SourceUDPPort,
		lid:       port.LID,
		mtu:       port.MTU,
		reads:     s.destReads,
		qpn:       conn.lane.Num(),
		psn:       binary.NativeEndian.Uint32(random[8:]) & 0xffffff,
		nonce:     newNonce(binary.NativeEndian.Uint64(random[:]), s.CloseTimeout >= 0 && word.watchable()),
		readyAddr: word.region.Addr(),
		readyKey:  word.region.RKey(),
	}
	conn.establishment = signal
	conn.start = func() {
		signal.startTimeout()
		conn.bringUp(signal.queuePairUp)
	}
	desc, err := conn.local.encode()
	if err != nil {
		word.release()
	}
	return desc, err
}

// descriptorSignal is the establishment of connections whose descriptors travel out of band.
type descriptorSignal interface {
	establishment
	// startTimeout starts the time-out for the peer.
	startTimeout()
	// queuePairUp is called once the queue pair is up and the connection is Connecting, or has been made
	// Ready by the peer meanwhile.
	queuePairUp()
}

// newSignal returns the establishment for the transport service, and its word.
func (conn *Connection) newSignal() (descriptorSignal, *readyWord) {
	if conn.ctx.set.Transport == verbs.UC {
		s := &ucSignal{}
		return s, &s.readyWord
	}
	s := &rcSignal{}
	return s, &s.readyWord
}

// Connect takes the peer's descriptor, binary or armored, and begins to connect. The
// connection becomes Ready when both ends have called Connect. If the peer does not within
// Config.ConnectTimeout, the connection fails with ErrTimeout. A connection can be its own
// peer.
//
// It is legal once, in the state Exported. Its errors match those of package descriptor,
// ErrMismatch if the settings or networks of the ends do not fit, and ErrNotReady in other
// states; after an error, Connect may be called again. If the device refuses, the connection
// fails. If the peer's host is down, the connection waits for it.
func (conn *Connection) Connect(desc []byte) error {
	if err := conn.owned("connect"); err != nil {
		return err
	}
	c := conn.ctx
	if conn.state() != Exported || conn.start == nil {
		return fmt.Errorf("rdma: connect %v: %w: the connection is %v; call Connect once, on a connection of Export", conn, ErrNotReady, conn.state())
	}
	if err := c.control.Require("connect", pe.Starting, pe.Running); err != nil {
		return err
	}
	peer, err := decodeEndpoint(desc)
	if err != nil {
		return fmt.Errorf("rdma: connect %v: %w", conn, err)
	}
	if err := conn.match(&peer); err != nil {
		return fmt.Errorf("rdma: connect %v: %w", conn, err)
	}
	if _, err := conn.sgidIndex(); err != nil {
		return fmt.Errorf("rdma: connect %v: %w", conn, err)
	}
	conn.peer = peer
	conn.path.mtu = min(conn.local.mtu, peer.mtu)
	conn.path.maxReads = min(peer.reads, c.set.initReads)
	conn.connecting()
	conn.start()
	return nil
}

// match refuses peers that packets would not reach.
func (conn *Connection) match(peer *endpoint) error {
	l := &conn.local
	switch err := sameNetwork(l.gidType, peer.gidType, l.gid, peer.gid); {
	case err != nil:
		return err
	case l.transport != peer.transport:
		return fmt.Errorf("%w: this end uses the transport service %v, the peer %v; set the same Config.Transport at both ends", ErrMismatch, l.transport, peer.transport)
	case l.qpn == peer.qpn && l.gid == peer.gid && l.udpPort == peer.udpPort && l.nonce != peer.nonce:
		return fmt.Errorf("%w: the descriptor is of an earlier connection with this address and queue pair number; export it again", ErrMismatch)
	}
	return nil
}

// sameNetwork refuses GIDs that do not speak the same protocol.
func sameNetwork(ownType, peerType verbs.GIDType, own, peer verbs.GID) error {
	switch {
	case ownType != peerType:
		return fmt.Errorf("%w: this end uses %v, the peer %v; choose other GID indexes", ErrMismatch, ownType, peerType)
	case ownType == verbs.GIDRoCEv2 && own.Addr().Is4() != peer.Addr().Is4():
		return fmt.Errorf("%w: this end has the address %v, the peer %v: one is IPv4 and one IPv6; choose other GID indexes",
			ErrMismatch, own.Addr(), peer.Addr())
	}
	return nil
}

// bringUp takes the queue pair from Init to Ready to Send, and calls done then.
func (conn *Connection) bringUp(done func()) {
	s := conn.ctx.set
	sgidIndex, err := conn.sgidIndex()
	if err != nil {
		conn.fail(err)
		return
	}
	conn.connectLane(verbs.QPAttr{
		Address: s.path(sgidIndex, conn.peer.gid, conn.peer.lid, conn.peer.udpPort, conn.peer.source),
		PathMTU: conn.path.mtu, DestQPN: conn.peer.qpn, RQPSN: conn.peer.psn, SQPSN: conn.local.psn,
		MaxDestReadAtomic: s.destReads, MaxInitReadAtomic: conn.path.maxReads, MinRNRTimer: minRNRTimer,
		Timeout: s.timeout, RetryCount: retryCount, RNRRetry: s.rnrRetry,
	}, func(err error) {
		if err != nil {
			conn.fail(conn.deviceError(err))
			return
		}
		done()
	})
}

// sgidIndex is the present index, in the GID table, of the address in this end's descriptor.
func (conn *Connection) sgidIndex() (int, error) {
	c, own := conn.ctx, &conn.local
	if now := &c.port.State().GID; now.GID == own.gid && now.Type == own.gidType {
		return now.Index, nil
	}
	if e, ok, err := c.port.Find(verbs.GIDEntry{GID: own.gid, Type: own.gidType}); err != nil || ok {
		return e.Index, err
	}
	return 0, fmt.Errorf("%w: the address %v in the exported descriptor is no longer in the GID table of port %d of %s; export another connection",
		ErrGID, own.gid.Addr(), c.set.Path.Port, c.dev.Name())
}

// reset takes the queue pair back to Init, from any state. No helper has it.
func (conn *Connection) reset() error {
	conn.transition.cancel()
	conn.life.Takes(false)
	conn.signal.send.ChangeID()
	conn.signal.purpose = signalNone
	if err := conn.lane.Reset(); err != nil {
		return err
	}
	conn.returnReceives()
	return conn.initialize(conn.ctx.set.Path.Port, 0)
}

// initialize takes the queue pair from Reset to Init, for a port of the device.
func (conn *Connection) initialize(port, pKeyIndex int) error {
	conn.path.port, conn.path.pKeyIndex = port, pKeyIndex
	return conn.lane.Initialize(port, pKeyIndex, conn.ctx.set.access)
}

// changed updates the context when the state has changed. Closed is reported only when the
// connection is destroyed.
func (conn *Connection) changed(was ConnectionState, err error) {
	c, state := conn.ctx, conn.state()
	if err != nil {
		conn.err = err
	}
	if state == Failed {
		conn.setDialError(nil) // no further attempt: Err says why
	}
	conn.publish()
	if conn.awaited && state != Connecting {
		conn.awaited = false
		c.awaited--
	}
	if state == Closed {
		c.closedInPlace++
	} else {
		c.queueReport(conn, state, err)
	}
	if was.usable() && !state.usable() {
		conn.deadline.Set(time.Time{})
		c.usable--
		if !conn.unaccepted() {
			c.ended, c.lastFailure = true, nil
			if state == Failed {
				c.lastFailure = err
			}
		}
		if c.set.EndWithLastConnection && c.usable == 0 && c.lastFailure != nil {
			c.control.Fail(fmt.Errorf("rdma: the last connection has failed: %w", c.lastFailure))
		}
	}
	c.wake()
}

// connecting begins the establishment.
func (conn *Connection) connecting() {
	conn.life.Connect()
	conn.changed(Exported, nil)
}

// ready ends the establishment with success.
func (conn *Connection) ready() {
	conn.setDialError(nil)
	if conn.readSubmitted && conn.path.maxReads == 0 { // the device would never begin the read
		conn.fail(fmt.Errorf("%w: a read or an atomic was submitted before the connection was Ready, and one end accepts none", ErrNotSupported))
		return
	}
	accepted := conn.accepted
	if accepted != nil && accepted.onEstablished != nil {
		f := accepted.onEstablished
		accepted.onEstablished = nil
		if f(conn); conn.state() != Connecting {
			return
		}
	}
	conn.heard()
	conn.life.Connected()
	conn.changed(Connecting, nil)
	if accepted != nil {
		accepted.listener.connected(1)
	}
	conn.lane.Admit()
	conn.startKeepalive(conn.ctx.host.Now())
}

// push gives a request to the lane, where it waits until the connection is Ready.
func (conn *Connection) push(r *lane.Request) {
	if conn.life.Phase() == life.Ready {
		conn.lane.Push(r)
	} else {
		conn.lane.Withhold(r)
	}
}

// checkReads fails if the ends have agreed on no reads and atomics.
func (conn *Connection) checkReads() error {
	if conn.path.maxReads == 0 && conn.path.mtu != 0 {
		return conn.noReadsError()
	}
	return nil
}

func (conn *Connection) noReadsError() error {
	return fmt.Errorf("%w: one end of %v accepts no reads, atomics or atomic writes", ErrNotSupported, conn)
}

// notUsable is the error of a request on a connection that has ended.
func (conn *Connection) notUsable() error {
	if conn.err != nil {
		return fmt.Errorf("%w: %v is %v: %w", ErrNotReady, conn, conn.state(), conn.withoutName(conn.err))
	}
	return fmt.Errorf("%w: %v is %v", ErrNotReady, conn, conn.state())
}

func (conn *Connection) deviceError(err error) error {
	return fmt.Errorf("%w: %w", ErrDevice, err)
}

// failedTask ends the connection after a request has failed.
func (conn *Connection) failedTask(status verbs.Status, err error) {
	if conn.state() != Ready && conn.state() != Connecting {
		return
	}
	if status != verbs.StatusFlushed {
		conn.fail(err)
		return
	}
	// The device has put the queue pair in error by itself. The reason is in an event.
	conn.ctx.handleEventsOf(conn.lane.Num())
	conn.fail(fmt.Errorf("%w: the queue pair is in the error state", ErrDevice))
}

// ID is the number of the connection in its context. Numbers begin at 0 and are never reused.
func (conn *Connection) ID() uint64 { return conn.id }

// Context is the context of the connection.
func (conn *Connection) Context() *Connections { return conn.ctx }

// State is the present state. Any goroutine may call it, and all other methods that return a
// property of the connection, except UserData, SetUserData and String.
func (conn *Connection) State() ConnectionState { return conn.view().state }

// Err is why the connection ended: the error it failed with, one that matches ErrPeerClosed if
// the peer closed it, nil otherwise.
func (conn *Connection) Err() error { return conn.view().err }

// check panics, in programs built with the race detector, if another goroutine drives the
// engine.
func (conn *Connection) check(op string) { conn.ctx.control.Check(op) }

// DialError is why the latest attempt of Dial has failed, or waits, while Dial goes on. It is nil
// before an attempt has failed, when the connection is Ready or Failed, and for connections
// that were not dialled. It may be called from any goroutine.
func (conn *Connection) DialError() error {
	if err := conn.dialError.Load(); err != nil {
		return *err
	}
	return nil
}

// setDialError sets what DialError returns.
func (conn *Connection) setDialError(err error) {
	if err == nil {
		conn.dialError.Store(nil)
		return
	}
	conn.dialError.Store(&err)
}

// UserData returns what SetUserData stored last, or nil.
func (conn *Connection) UserData() any {
	conn.check("read the user data of a connection")
	return conn.userData
}

// SetUserData stores a value of the user's with the connection.
func (conn *Connection) SetUserData(v any) {
	conn.check("set the user data of a connection")
	conn.userData = v
}

// QPN is the number of the connection's queue pair.
func (conn *Connection) QPN() uint32 { return conn.view().qpn }

// PeerQPN is the number of the peer's queue pair; zero before Connect.
func (conn *Connection) PeerQPN() uint32 { return conn.view().peerQPN }

// LocalAddr is the address of this end. For a connection by descriptors, its port is the UDP
// port of RoCE. For one that was dialled or accepted, it is the port of the connection
// manager, known when the connection is Ready. On InfiniBand, the address of a descriptor is
// the GID written as an address.
func (conn *Connection) LocalAddr() netip.AddrPort { return conn.view().local }

// PeerAddr is the address of the peer, with a port as in LocalAddr; not valid before Connect.
func (conn *Connection) PeerAddr() netip.AddrPort { return conn.view().peer }

// AcceptData is the private data that the peer's program sent when it accepted this end's
// Dial. It is nil before that, and for connections made otherwise. The message does not carry
// its length: the data is 196 bytes long, padded with zeroes.
func (conn *Connection) AcceptData() []byte { return conn.view().acceptData }

// DisconnectData is the private data that the peer's program sent when it ended a connection made
// by address (DialConfig.DisconnectData). It is nil before that. The message does not carry its
// length: the data is 220 bytes long, padded with zeroes, which are all there is if the peer's
// device cannot send any. On a device that does not show it, as librdmacm does not, it stays nil.
func (conn *Connection) DisconnectData() []byte { return conn.view().disconnectData }

func (e *endpoint) addr() netip.AddrPort {
	if e.qpn == 0 {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(e.gid.Addr(), e.udpPort)
}

// MTU is the path MTU, the smaller of the two ends'; zero before Connect.
func (conn *Connection) MTU() verbs.MTU { return conn.view().mtu }

// Path is how packets travel now. The software device uses shared memory if the peer is a
// process of the same user and network namespace, and else the network. It is
// verbs.PathUnknown on adapters, and while the connection is not connected.
func (conn *Connection) Path() verbs.Path {
	if qp, ok := conn.QP().(verbs.PathQP); ok {
		return qp.Path()
	}
	return verbs.PathUnknown
}

// MaxReadAtomic is how many reads and atomics of this end can be under way at a time;
// the device makes further ones wait. Zero before Connect.
func (conn *Connection) MaxReadAtomic() int { return conn.view().maxReads }

// String names the connection, its queue pairs and its peer.
func (conn *Connection) String() string {
	s := fmt.Sprintf("connection %d of context %q (queue pair %#x", conn.id, conn.ctx.set.Name, conn.lane.Num())
	switch {
	case conn.peer.qpn != 0:
		s += fmt.Sprintf(" to %v queue pair %#x", conn.peer.gid.Addr(), conn.peer.qpn)
	case conn.dialled != "":
		s += " dialling " + conn.dialled
	}
	return s + ")"
}

func sortBySerial(list []*Connection) {
	slices.SortFunc(list, func(a, b *Connection) int { return cmp.Compare(a.id, b.id) })
}
