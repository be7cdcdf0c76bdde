package rdma

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/verbs"
)

// ConnectionState is the state of a connection.
type ConnectionState int

// The states of a connection.
const (
	Exported   ConnectionState = iota // waits for Connect
	Connecting                        // waits for the peer
	Ready                             // at both ends
	Failed                            // Err has the reason
	Closed
)

var connectionStates = [...]string{"Exported", "Connecting", "Ready", "Failed", "Closed"}

// String names the state.
func (s ConnectionState) String() string {
	if s >= 0 && int(s) < len(connectionStates) {
		return connectionStates[s]
	}
	return "ConnectionState(" + strconv.Itoa(int(s)) + ")"
}

// Connection is one end of a reliable connection. It belongs to the goroutine
// that drives the engine, and is never used for another connection again.
type Connection struct {
	ctx      *Context
	id       uint64
	slot     int
	qp       verbs.QP
	qpn      uint32
	state    ConnectionState
	err      error
	judged   bool
	userData any

	local, peer endpoint
	mtu         verbs.MTU
	maxReads    int
	shake       handshake

	// Tasks from head on are in the order of submission; those before unposted
	// are at the device.
	head, tail, unposted *request
	posted               int
	dirty                bool

	dead        bool // the queue pair could not be put in error
	listed      bool // in ailing
	lastReceive bool // it takes no more receives off the shared queue
	grace       time.Time
}

// lastReceiveGrace is how long a closed queue pair is kept for the event that
// tells that it takes no more receives, which not every driver sends.
const lastReceiveGrace = 100 * time.Millisecond

// Export makes one end of a connection and its descriptor, in binary form
// (descriptor.Armor makes it text), for the peer's Connect. A descriptor is for
// one peer and one connection, and as secret as the memory that
// Config.Permissions open.
//
// It is legal in Starting and Running. It fails with ErrFull while
// MaxConnections exist; a place is free again when a connection that was closed
// is reported Closed. While another goroutine drives the engine it fails with
// pe.ErrBusy, and so do Connect and Close.
func (c *Context) Export() (*Connection, []byte, error) {
	if err := c.control.Owned("export a connection"); err != nil {
		return nil, nil, err
	}
	if err := c.control.Require("export a connection", pe.Starting, pe.Running); err != nil {
		return nil, nil, err
	}
	if len(c.free) == 0 {
		return nil, nil, fmt.Errorf("rdma: export a connection of context %q: %w: all %d are taken; close one, or raise Config.MaxConnections",
			c.set.Name, ErrFull, c.set.MaxConnections)
	}
	conn := &Connection{ctx: c, slot: c.free[len(c.free)-1], id: c.serial}
	desc, err := conn.create()
	if err != nil {
		if conn.qp != nil {
			err = errors.Join(err, conn.qp.Close())
		}
		return nil, nil, fmt.Errorf("rdma: export a connection of context %q: %w", c.set.Name, err)
	}
	c.serial++
	c.free = c.free[:len(c.free)-1]
	c.slots[conn.slot] = conn
	c.byQPN[conn.qpn] = conn
	return conn, desc, nil
}

// create makes the queue pair, in the state Init, and the descriptor.
func (conn *Connection) create() ([]byte, error) {
	c, s := conn.ctx, conn.ctx.set
	init := verbs.QPInit{
		Type: verbs.RC, SendCQ: c.cq, RecvCQ: c.cq, SRQ: c.srq,
		MaxSendWR: c.sendDepth + helloDepth, MaxSendSGE: s.MaxSendSGE, MaxInline: s.inline,
	}
	if c.srq == nil {
		init.MaxRecvWR = 1
	}
	var err error
	if conn.qp, err = s.PD.CreateQP(init); err != nil {
		return nil, err
	}
	conn.qpn = conn.qp.Num()
	if err := conn.initialize(); err != nil {
		return nil, err
	}
	var random [12]byte
	_, _ = rand.Read(random[:]) // never fails
	conn.local = endpoint{
		transport: verbs.RC,
		gidType:   s.gid.Type,
		gid:       s.gid.GID,
		udpPort:   cmp.Or(s.gid.UDPPort, roceUDPPort),
		lid:       s.lid,
		mtu:       s.MTU,
		reads:     s.reads,
		qpn:       conn.qpn,
		psn:       binary.NativeEndian.Uint32(random[8:]) & 0xffffff,
		nonce:     binary.NativeEndian.Uint64(random[:]) | 1,
		helloAddr: c.hello.Addr() + 8*uint64(conn.slot),
		helloKey:  c.helloKey,
	}
	conn.clearHello()
	return conn.local.encode()
}

func (conn *Connection) initialize() error {
	return conn.qp.Modify(verbs.QPAttr{
		State: verbs.QPInitialized, Port: conn.ctx.set.Port, Access: conn.ctx.set.access,
	}, verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess)
}

// Connect takes the peer's descriptor, binary or armored, and begins to connect.
// When both ends have done so, the connection becomes Ready: OnConnection is told,
// and the context enters Running if it was waiting for this connection. It can be
// its own peer.
//
// It is legal once, in the state Exported. Its errors match those of package
// descriptor, ErrMismatch where the two ends cannot talk to each other, and
// ErrNotReady in other states; after an error it may be tried again.
func (conn *Connection) Connect(desc []byte) error {
	if err := conn.ctx.control.Owned("connect"); err != nil {
		return err
	}
	if conn.state != Exported {
		return fmt.Errorf("rdma: connect %v: %w: it is %v, and can be connected only when Exported", conn, ErrNotReady, conn.state)
	}
	if err := conn.ctx.control.Require("connect", pe.Starting, pe.Running); err != nil {
		return err
	}
	peer, err := decodeEndpoint(desc)
	if err != nil {
		return fmt.Errorf("rdma: connect %v: %w", conn, err)
	}
	if err := conn.match(&peer); err != nil {
		return fmt.Errorf("rdma: connect %v: %w", conn, err)
	}
	conn.peer = peer
	conn.mtu = min(conn.local.mtu, peer.mtu)
	conn.maxReads = min(peer.reads, conn.ctx.set.caps.MaxReadAtomic)
	if err := conn.beginHandshake(); err != nil {
		conn.peer = endpoint{}
		return fmt.Errorf("rdma: connect %v: %w", conn, err)
	}
	return nil
}

// match refuses peers that packets would not reach.
func (conn *Connection) match(peer *endpoint) error {
	l := &conn.local
	switch {
	case l.gidType != peer.gidType:
		return fmt.Errorf("%w: this end speaks %v, the peer %v; choose other GID indexes", ErrMismatch, l.gidType, peer.gidType)
	case l.gidType == verbs.GIDRoCEv2 && l.gid.Addr().Is4() != peer.gid.Addr().Is4():
		return fmt.Errorf("%w: this end has the address %v, the peer %v: one is IPv4 and one IPv6; choose other GID indexes",
			ErrMismatch, l.gid.Addr(), peer.gid.Addr())
	case l.qpn == peer.qpn && l.gid == peer.gid && l.udpPort == peer.udpPort && l.nonce != peer.nonce:
		return fmt.Errorf("%w: the descriptor is an old one of this same address and queue pair; export it again", ErrMismatch)
	}
	return nil
}

// up takes the queue pair from Init to Ready to Send.
func (conn *Connection) up() error {
	s := conn.ctx.set
	access := s.access
	if conn.shake.role == passive {
		access |= verbs.AccessRemoteWrite
	}
	err := conn.qp.Modify(verbs.QPAttr{
		State:  verbs.QPReadyToReceive,
		Access: access,
		Address: verbs.AddressAttr{
			DGID: conn.peer.gid, SGIDIndex: s.gid.Index, Port: s.Port, SL: s.SL, HopLimit: s.HopLimit,
			TrafficClass: s.TrafficClass, DLID: conn.peer.lid, UDPPort: conn.peer.udpPort,
		},
		PathMTU: conn.mtu, DestQPN: conn.peer.qpn, RQPSN: conn.peer.psn,
		MaxDestReadAtomic: s.reads, MinRNRTimer: s.rnrTimer,
	}, verbs.QPAttrState|verbs.QPAttrAccess|verbs.QPAttrAddress|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|
		verbs.QPAttrRQPSN|verbs.QPAttrMaxDestReadAtomic|verbs.QPAttrMinRNRTimer)
	if err != nil {
		return err
	}
	return conn.qp.Modify(verbs.QPAttr{
		State: verbs.QPReadyToSend, Timeout: s.timeout, RetryCount: s.retries, RNRRetry: s.rnrRetry,
		SQPSN: conn.local.psn, MaxInitReadAtomic: conn.maxReads,
	}, verbs.QPAttrState|verbs.QPAttrTimeout|verbs.QPAttrRetryCount|verbs.QPAttrRNRRetry|
		verbs.QPAttrSQPSN|verbs.QPAttrMaxInitReadAtomic)
}

// reset takes the queue pair back to Init, from any state.
func (conn *Connection) reset() error {
	if err := conn.qp.Modify(verbs.QPAttr{State: verbs.QPReset}, verbs.QPAttrState); err != nil {
		return err
	}
	conn.lastReceive = false
	return conn.initialize()
}

// Close ends the connection, in any state. Its tasks in flight come back through
// their error callbacks, flushed, inside Progress. When the device has let go of
// everything, OnConnection reports Closed and the place is free for another. The
// peer is not told: its next task fails. Closing again does nothing.
func (conn *Connection) Close() error {
	if err := conn.ctx.control.Owned("close a connection"); err != nil {
		return err
	}
	if conn.state == Closed {
		return nil
	}
	if conn.state == Exported {
		conn.lastReceive = true // it never took any
	}
	conn.ctx.leaveHandshake(conn)
	failed := conn.state == Failed
	conn.state = Closed
	conn.grace = time.Now().Add(lastReceiveGrace)
	if failed {
		conn.ail()
	} else {
		conn.shut()
	}
	return nil
}

// fail marks the connection as failed.
func (conn *Connection) fail(err error) {
	if conn.state == Failed || conn.state == Closed {
		return
	}
	conn.ctx.leaveHandshake(conn)
	conn.state, conn.err = Failed, err
	conn.shut()
	conn.ctx.report(conn, Failed, err)
}

// shut puts the queue pair in error, so that what is posted comes back.
func (conn *Connection) shut() {
	if err := conn.qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.QPAttrState); err != nil {
		conn.dead = true
		conn.ctx.set.Log.Warn().Err(err).Stringer("connection", conn).Msg("putting the queue pair in error")
	}
	conn.ail()
}

func (conn *Connection) ail() {
	if !conn.listed {
		conn.listed = true
		conn.ctx.ailing = append(conn.ctx.ailing, conn)
	}
	conn.ctx.poke()
}

// tend looks after connections that failed or were closed: it flushes what was
// never posted, after what was, and destroys closed ones that nothing is left of.
func (c *Context) tend() int {
	n := 0
	list := c.ailing
	c.ailing = nil // callbacks may add to it
	for _, conn := range list {
		switch {
		case conn.dead:
			n += conn.destroy()
		case conn.posted > 0:
			c.ailing = append(c.ailing, conn)
		case conn.state != Closed:
			conn.listed = false
			n += conn.flushRest()
		case conn.lingers():
			c.ailing = append(c.ailing, conn)
			n += conn.flushRest()
		default:
			n += conn.destroy()
		}
	}
	return n
}

// lingers reports whether completions of receives may still be on their way.
func (conn *Connection) lingers() bool {
	c := conn.ctx
	return !c.drained || c.phase == phaseUp && c.srq != nil && !conn.lastReceive && time.Now().Before(conn.grace)
}

// flushRest completes as flushed everything that the device does not have, or
// will not give back.
func (conn *Connection) flushRest() int {
	n := 0
	for conn.head != nil {
		r := conn.pop()
		n++
		r.fail(verbs.StatusFlushed, 0)
	}
	return n
}

// destroy closes the queue pair and frees the place.
func (conn *Connection) destroy() int {
	c := conn.ctx
	if err := conn.qp.Close(); err != nil {
		c.set.Log.Warn().Err(err).Stringer("connection", conn).Msg("closing the queue pair")
	}
	conn.state = Closed
	delete(c.byQPN, conn.qpn)
	if c.last == conn {
		c.last = nil
	}
	c.slots[conn.slot] = nil
	c.free = append(c.free, conn.slot)
	c.report(conn, Closed, nil)
	return 1 + conn.flushRest()
}

// ID numbers the connections of a context, from 0 on, for good.
func (conn *Connection) ID() uint64 { return conn.id }

// Context is the context of the connection.
func (conn *Connection) Context() *Context { return conn.ctx }

// State is the present state.
func (conn *Connection) State() ConnectionState { return conn.state }

// Err is why the connection failed, or nil.
func (conn *Connection) Err() error { return conn.err }

// UserData returns what SetUserData stored last.
func (conn *Connection) UserData() any { return conn.userData }

// SetUserData stores a value of the user's with the connection.
func (conn *Connection) SetUserData(v any) { conn.userData = v }

// QPN is the number of the connection's queue pair.
func (conn *Connection) QPN() uint32 { return conn.qpn }

// PeerQPN is the number of the peer's queue pair; zero before Connect.
func (conn *Connection) PeerQPN() uint32 { return conn.peer.qpn }

// LocalAddr is the address and UDP port of this end. On InfiniBand it means
// nothing.
func (conn *Connection) LocalAddr() netip.AddrPort { return conn.local.addr() }

// PeerAddr is the address and UDP port of the peer; not valid before Connect.
func (conn *Connection) PeerAddr() netip.AddrPort { return conn.peer.addr() }

func (e *endpoint) addr() netip.AddrPort {
	if e.qpn == 0 {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(e.gid.Addr(), e.udpPort)
}

// MTU is the path MTU, the smaller of the two ends'; zero before Connect.
func (conn *Connection) MTU() verbs.MTU { return conn.mtu }

// MaxReadAtomic is how many reads and atomics can be under way at a time; further
// ones wait at the device. Zero before Connect.
func (conn *Connection) MaxReadAtomic() int { return conn.maxReads }

// String names the connection, its queue pairs and its peer.
func (conn *Connection) String() string {
	s := fmt.Sprintf("connection %d of context %q (queue pair %#x", conn.id, conn.ctx.set.Name, conn.qpn)
	if conn.peer.qpn != 0 {
		s += fmt.Sprintf(" to %v queue pair %#x", conn.peer.gid.Addr(), conn.peer.qpn)
	}
	return s + ")"
}

func sortBySerial(list []*Connection) {
	slices.SortFunc(list, func(a, b *Connection) int { return cmp.Compare(a.id, b.id) })
}
