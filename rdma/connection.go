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
		state: conn.state, err: conn.err, qpn: conn.lane.Num(), peerQPN: conn.peer.qpn, local: conn.addrs[0], peer: conn.addrs[1],
		acceptData: conn.acceptData, disconnectData: conn.disconnectData, mtu: conn.mtu, maxReads: conn.maxReads, qp: conn.lane.QP(),
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
	state     ConnectionState
	err       error
	published atomic.Pointer[connectionView] // for all goroutines
	userData  any

	local, peer endpoint
	addrs       [2]netip.AddrPort     // of this end and the peer, if no descriptors have them
	dialled     string                // what the program has dialled
	dialError   atomic.Pointer[error] // see DialError
	acceptData  []byte                // private data of the peer's acceptance
	// disconnectData is the private data with which the peer has ended the connection.
	disconnectData []byte
	windows        fifo.List[*Window]
	port           int // port of the device that the queue pair uses
	pKeyIndex      int // in the table of that port
	mtu            verbs.MTU
	maxReads       int
	readSubmitted  bool // a read, an atomic or an atomic write was submitted

	establishment    establishment
	signal           signalRequest
	awaited          bool      // the context becomes Running when it is Ready
	interrupted      bool      // the peer closed it while requests were under way
	loopback         bool      // it is its own peer
	peerDisconnected bool      // the peer has sent its disconnect notice
	closeBy          time.Time // when the tasks at the device are flushed, if the connection is being closed
	// unconfirmed: until the peer has confirmed that it knows, or closeBy, the connection manager
	// repeats the message to the peer, and the queue pair serves the peer's requests.
	unconfirmed bool
	// closedOnFailure: the connection is closed if it fails, since the program does not know
	// of it.
	closedOnFailure bool
	peerAlive       bool // a message or a completion has come since the last check
	peerDead        bool // the device has reported that the peer's process is dead
	silentChecks    int  // since the last sign of life, or keepalive

	deadline deadline

	lastReceive bool       // the queue pair takes no more receives off the shared queue
	grace       time.Time  // until when to wait for lastReceive
	transition  transition // of its queue pair, to Ready to Send

	own connectionReceives // with ReceivePerConnection

	// With ReceivePerConnection, or on a device without shared receive queues:
	receives      fifo.List[*receive]    // at the device, of all connections' receives
	toRefill      fifo.Node[*Connection] // among those that have room for more
	takesReceives bool

	retired   bool // to be destroyed
	destroyed bool
	ending    fifo.Node[*Connection] // among those to be destroyed when their completions have been handled
	handledBy uint64                 // barrier of the lanes at which no completion of it is left
}

// lastReceiveGrace is how long a closed queue pair waits for the event that it takes no more
// receives off the shared queue. Not every driver reports the event.
const lastReceiveGrace = 100 * time.Millisecond

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
	conn.deadline.owner, conn.toRefill.Value, conn.ending.Value = conn, conn, conn
	err := conn.openLane()
	if err == nil {
		err = conn.openReceives()
	}
	if err == nil {
		err = setUp(conn)
	}
	if err != nil {
		if conn.lane != nil {
			err = errors.Join(err, conn.lane.Close())
			conn.returnReceives()
			err = errors.Join(err, conn.closeReceives())
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
	init := verbs.QPInit{Type: s.Transport, SRQ: c.receives.srq, MaxSendSGE: s.MaxSendSGE, MaxInline: s.inline, AdaptiveRetransmission: s.adaptive, SilenceTimeout: s.SilenceTimeout}
	if c.receives.srq == nil {
		init.MaxRecvWR = 1
	}
	if n := c.receives.ownQueueSize(); n > 0 {
		init.MaxRecvWR, init.MaxRecvSGE = n, s.MaxRecvSGE
		if c.receives.each != nil {
			init.MaxRecvSGE = 1
		}
	}
	conn.lane, err = c.lanes.Open(s.PD, init, c.lanes.depth(), (*laneOwner)(conn))
	return err
}

// export takes the queue pair to Init, and makes the descriptor.
func (conn *Connection) export() ([]byte, error) {
	s, port := conn.ctx.set, conn.ctx.portView()
	if err := conn.initialize(s.Port, s.PKeyIndex); err != nil {
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
		gidType:   port.gid.Type,
		gid:       port.gid.GID,
		udpPort:   cmp.Or(port.gid.UDPPort, roceUDPPort),
		source:    port.gid.SourceUDPPort,
		lid:       port.lid,
		mtu:       port.mtu,
		reads:     s.reads,
		qpn:       conn.lane.Num(),
		psn:       binary.NativeEndian.Uint32(random[8:]) & 0xffffff,
		nonce:     newNonce(binary.NativeEndian.Uint64(random[:]), s.CloseTimeout >= 0 && word.watchable()),
		readyAddr: word.region.Addr(),
		readyKey:  word.region.RKey(),
	}
	conn.establishment = signal
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
	signal, exported := conn.establishment.(descriptorSignal)
	if conn.state != Exported || !exported {
		return fmt.Errorf("rdma: connect %v: %w: the connection is %v; call Connect once, on a connection of Export", conn, ErrNotReady, conn.state)
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
	conn.mtu = min(conn.local.mtu, peer.mtu)
	conn.maxReads = min(peer.reads, c.set.MaxReadAtomic)
	conn.enter(Connecting, nil)
	signal.startTimeout()
	conn.bringUp(signal.queuePairUp)
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
		PathMTU: conn.mtu, DestQPN: conn.peer.qpn, RQPSN: conn.peer.psn, SQPSN: conn.local.psn,
		MaxDestReadAtomic: s.reads, MaxInitReadAtomic: conn.maxReads, MinRNRTimer: s.rnrTimer,
		Timeout: s.timeout, RetryCount: s.retries, RNRRetry: s.rnrRetry,
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
	if now := &c.portView().gid; now.GID == own.gid && now.Type == own.gidType {
		return now.Index, nil
	}
	table, err := c.gidTable(c.set.Port)
	if err != nil {
		return 0, err
	}
	if e, ok := entryOf(table, verbs.GIDEntry{GID: own.gid, Type: own.gidType}); ok {
		return e.Index, nil
	}
	return 0, fmt.Errorf("%w: the address %v in the exported descriptor is no longer in the GID table of port %d of %s; export another connection",
		ErrGID, own.gid.Addr(), c.set.Port, c.dev.Name())
}

// reset takes the queue pair back to Init, from any state. No helper has it.
func (conn *Connection) reset() error {
	conn.transition.cancel()
	conn.lastReceive = false
	conn.signal.send.ChangeID()
	conn.signal.purpose = signalNone
	if err := conn.lane.Reset(); err != nil {
		return err
	}
	conn.returnReceives()
	return conn.initialize(conn.ctx.set.Port, conn.ctx.set.PKeyIndex)
}

// initialize takes the queue pair from Reset to Init, for a port of the device.
func (conn *Connection) initialize(port, pKeyIndex int) error {
	conn.port, conn.pKeyIndex = port, pKeyIndex
	return conn.lane.Initialize(port, pKeyIndex, conn.ctx.set.access)
}

// enter changes the state of the connection, and updates the context. Closed is reported only
// when the connection is destroyed.
func (conn *Connection) enter(state ConnectionState, err error) {
	c, usable := conn.ctx, conn.state.usable()
	conn.state = state
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
	if usable && !state.usable() {
		c.setDeadline(&conn.deadline, time.Time{})
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

// ready ends the establishment with success.
func (conn *Connection) ready() {
	conn.setDialError(nil)
	if conn.readSubmitted && conn.maxReads == 0 { // the device would never begin the read
		conn.fail(fmt.Errorf("%w: a read or an atomic was submitted before the connection was Ready, and one end accepts none", ErrNotSupported))
		return
	}
	e, accepted := conn.establishment.(*acceptedEnd)
	if accepted && e.onEstablished != nil {
		f := e.onEstablished
		e.onEstablished = nil
		if f(conn); conn.state != Connecting {
			return
		}
	}
	conn.peerAlive = true
	conn.enter(Ready, nil)
	if accepted {
		e.listener.connected(1)
	}
	conn.lane.Admit()
	conn.startKeepalive(conn.ctx.host.Now())
}

// push gives a request to the lane, where it waits until the connection is Ready.
func (conn *Connection) push(r *lane.Request) {
	if conn.state == Ready {
		conn.lane.Push(r)
	} else {
		conn.lane.Withhold(r)
	}
}

// checkReads fails if the ends have agreed on no reads and atomics.
func (conn *Connection) checkReads() error {
	if conn.maxReads == 0 && conn.mtu != 0 {
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
		return fmt.Errorf("%w: %v is %v: %w", ErrNotReady, conn, conn.state, conn.withoutName(conn.err))
	}
	return fmt.Errorf("%w: %v is %v", ErrNotReady, conn, conn.state)
}

// Close ends the connection, in any state and in callbacks too, and notifies the peer.
// It does not wait. Tasks that the device has may still complete, for as long as
// Config.CloseTimeout; all others come back through their error callbacks, flushed,
// inside Progress. When nothing of the connection is left at the device and, on a connection
// made by address, the peer has confirmed that it knows, or that time is over, OnConnection
// reports Closed, and the place is free for another. Closing again does nothing. While
// another goroutine drives the engine it fails with pe.ErrBusy.
func (conn *Connection) Close() error {
	if err := conn.owned("close a connection"); err != nil {
		return err
	}
	conn.close()
	return nil
}

// owned fails while another goroutine drives the engine.
func (conn *Connection) owned(op string) error { return conn.ctx.control.Owned(op) }

func (conn *Connection) close() {
	was := conn.state
	if was == Closed {
		return
	}
	if _, bridged := conn.establishment.(*bridge); was == Exported || conn.mtu == 0 && !bridged {
		conn.lastReceive = true // its queue pair never took any
	}
	if conn.peerDisconnected && was != Failed {
		conn.peerClosed()
		return
	}
	conn.enter(Closed, nil)
	switch {
	case was == Failed:
		conn.retire()
	case was != Ready && !(was == Connecting && conn.establishment.disconnectWhileConnecting()) ||
		conn.disconnectArrived() && !conn.answered() || !conn.startDisconnect():
		conn.shut()
	}
}

// closing reports whether the connection is Closed and waits for its tasks at the device.
func (conn *Connection) closing() bool {
	return conn.state == Closed && !conn.lane.IsShut() && !conn.transition.shut.Load()
}

// disconnectArrived reports whether the peer's disconnect notice has arrived.
func (conn *Connection) disconnectArrived() bool {
	return conn.state != Exported && conn.establishment.disconnectArrived()
}

// peerClosed ends a connection that the peer has closed. The peer's own tasks are done.
func (conn *Connection) peerClosed() {
	switch {
	case conn.closing():
		switch {
		case !conn.answered() || conn.unconfirmed:
			conn.shut()
		case conn.signal.purpose == signalDisconnect:
			conn.limitClose(answerRepeats)
		default:
			conn.limitClose(answerTimeout)
		}
	case conn.state.usable():
		conn.enter(Closed, conn.withName(ErrPeerClosed))
		if !conn.answered() || !conn.startDisconnect() {
			conn.shut()
			return
		}
		conn.limitClose(answerTimeout)
	}
}

// answered reports whether the ends answer each other's disconnect notices.
func (conn *Connection) answered() bool {
	return conn.establishment.disconnectAnswered()
}

// fail ends a connection with an error. If the peer's disconnect notice has arrived, the
// connection was closed instead, and the error followed from that.
func (conn *Connection) fail(err error) {
	if !conn.state.usable() {
		return
	}
	if conn.disconnectArrived() || conn.establishment.disconnectHeld() {
		conn.enter(Closed, conn.withName(ErrPeerClosed))
		conn.shut()
		return
	}
	conn.failDespiteDisconnect(err)
}

// failDespiteDisconnect is fail for an error that does not follow from the peer's disconnect.
func (conn *Connection) failDespiteDisconnect(err error) {
	if !conn.state.usable() {
		return
	}
	conn.enter(Failed, conn.withName(err))
	conn.shut()
}

func (conn *Connection) deviceError(err error) error {
	return fmt.Errorf("%w: %w", ErrDevice, err)
}

// shut puts the queue pair in error, so that what is posted comes back flushed.
func (conn *Connection) shut() {
	conn.unconfirmed = false
	conn.ctx.setDeadline(&conn.deadline, time.Time{})
	conn.refuseReceives()
	conn.establishment.ended()
	conn.shutLane()
	conn.tryDestroy()
}

// shutLane shuts the lane, as soon as no helper uses the queue pair.
func (conn *Connection) shutLane() {
	t := &conn.transition
	t.shut.Store(t.running)
	if t.running {
		return
	}
	t.cancel()
	if err := conn.lane.Shut(); err != nil {
		conn.ctx.set.Log.Warn().Err(err).Stringer("connection", conn).Msg("failed to move the queue pair to the error state")
	}
	conn.ctx.wake()
}

// failedTask ends the connection after a request has failed.
func (conn *Connection) failedTask(status verbs.Status, err error) {
	if conn.state != Ready && conn.state != Connecting {
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

// laneOwner is a Connection as the owner of its lane.
type laneOwner Connection

// PostFailed implements lane.Owner.
func (o *laneOwner) PostFailed(err error) {
	conn := (*Connection)(o)
	conn.fail(fmt.Errorf("%w: post requests: %w", ErrDevice, err))
	conn.shut() // even if it is closing
}

// drained implements laneDrainer.
func (o *laneOwner) drained() int {
	conn := (*Connection)(o)
	conn.ctx.settle(conn.lane)
	if conn.lane.Closed() {
		conn.removeQPN()
		conn.returnReceives()
	}
	n := conn.lane.Flush()
	if conn.state == Closed {
		conn.retire()
	}
	return n
}

// removeQPN forgets the number of a destroyed queue pair: the device may reuse it.
func (conn *Connection) removeQPN() {
	c, n := conn.ctx, conn.lane.Num()
	if c.byQPN[n] != conn {
		return
	}
	c.handleEventsOf(n)
	delete(c.byQPN, n)
	if c.last == conn {
		c.last = nil
	}
}

// retire makes the connection be destroyed as soon as possible.
func (conn *Connection) retire() {
	c := conn.ctx
	if !conn.retired && c.phase == phaseUp && c.receives.srq != nil && !conn.lastReceive {
		conn.grace = c.host.Now().Add(lastReceiveGrace)
		c.setDeadline(&conn.deadline, conn.grace)
	}
	conn.retired = true
	conn.tryDestroy()
}

// tryDestroy lists a retired connection to be destroyed, if all that is left of it is
// completions to be handled. It is called whenever one of the conditions may have changed, so
// that connections that wait cost nothing.
func (conn *Connection) tryDestroy() {
	c := conn.ctx
	if !conn.retired || conn.destroyed || conn.ending.Queued() || conn.unconfirmed || !conn.lane.Drained() ||
		c.phase == phaseUp && c.receives.srq != nil && !conn.lastReceive && c.host.Now().Before(conn.grace) {
		return
	}
	conn.handledBy = c.lanes.Barrier()
	c.ending.Push(&conn.ending)
	c.wake()
}

// destroyRetired destroys connections whose completions have all been handled, and returns how
// many. Completions of receives of all connections come from one queue. None of the connection
// is left when that queue is empty, or when as many completions have been handled as it holds. A
// drained lane has had those of receives of its own.
func (c *Connections) destroyRetired() int {
	n := 0
	for e := c.ending.Front(); e != nil; e = c.ending.Front() {
		if c.receives.each == nil && !c.lanes.Passed(e.Value.handledBy) {
			break
		}
		c.ending.Pop()
		n += e.Value.destroy()
	}
	return n
}

// destroy closes the queue pair and frees the place.
func (conn *Connection) destroy() int {
	c := conn.ctx
	conn.destroyed = true
	conn.endWindows()
	if err := conn.lane.Close(); err != nil {
		c.set.Log.Warn().Err(err).Stringer("connection", conn).Msg("failed to close the queue pair")
	}
	if c.settle(conn.lane); conn.lane.Settle() == nil {
		conn.returnReceives()
	}
	conn.removeQPN()
	n := 1 + conn.lane.Flush()
	if err := conn.closeReceives(); err != nil {
		c.set.Log.Warn().Err(err).Stringer("connection", conn).Msg("failed to free the buffers for messages")
	}
	c.setDeadline(&conn.deadline, time.Time{})
	conn.establishment.release()
	conn.signal.send.ChangeID()
	c.lanes.Remove(&conn.signal.send)
	c.vacate(conn)
	var reason error
	if errors.Is(conn.err, ErrPeerClosed) {
		reason = conn.err
	}
	if conn.interrupted && c.interrupted == nil {
		c.interrupted = fmt.Errorf("rdma: %v ended with requests under way: %w", conn, conn.withoutName(conn.err))
	}
	c.queueReport(conn, Closed, reason)
	if c.set.EndWithLastConnection && c.usable == 0 && c.phase == phaseUp && c.ended {
		c.endsWithLast = true
	}
	return n
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
