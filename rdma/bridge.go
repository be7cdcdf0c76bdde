package rdma

import (
	"fmt"
	"net/netip"

	"github.com/verbena-rdma/verbena/rdma/internal/life"
	"github.com/verbena-rdma/verbena/verbs"
)

// Bridge makes a connection whose queue pair the program connects by itself: with a
// communication ID of its own (verbs.CMID), or with a peer and a protocol that this SDK does
// not know. It also serves for attributes that no Config has: those of packets, the retry count,
// the RNR timer, reads and atomics under way at a time, a partition (P_Key). The queue pair,
// Connection.QP, is in the state Init, with the access rights of Config.Permissions, and takes
// receives of the context. The program modifies it to Ready to Receive and Ready to Send, and
// then calls Connection.Established. The connection is Connecting until then, for
// Config.ConnectTimeout.
//
// Nothing tells the peer when such a connection is closed. The program's own protocol must do
// that, and must call Close when the peer has closed. Keepalives are empty writes, as on other
// connections.
//
// It is legal where Export is, and fails as Export does.
func (c *Connections) Bridge() (*Connection, error) {
	conn, err := c.newConnection("bridge a connection", func(conn *Connection) error {
		b := &bridge{conn}
		conn.establishment, conn.establish = b, b.establish
		return conn.initialize(c.set.Path.Port, 0)
	})
	if err != nil {
		return nil, err
	}
	conn.takeReceives()
	conn.life.Takes(c.receives.SRQ() != nil)
	conn.connecting()
	if limit := c.set.ConnectTimeout; limit > 0 {
		conn.deadline.Set(c.host.Now().Add(limit))
	}
	return conn, nil
}

// Established makes a connection of Bridge Ready, or one that was dialled with
// DialConfig.OnResponse. The queue pair of the former has to be in the state Ready to Send,
// and the peer of the latter must have accepted: otherwise Established fails with ErrNotReady,
// and may be called again.
func (conn *Connection) Established() error {
	const op = "establish a connection"
	if err := conn.owned(op); err != nil {
		return err
	}
	if conn.establish == nil || conn.state() != Connecting {
		return fmt.Errorf("rdma: %s: %v: %w: the connection is %v; call Established once, on a connection of Bridge or after DialConfig.OnResponse", op, conn, ErrNotReady, conn.state())
	}
	if err := conn.establish(); err != nil {
		return fmt.Errorf("rdma: %s: %v: %w", op, conn, err)
	}
	return nil
}

// bridge is the establishment of a connection that the program makes.
type bridge struct{ conn *Connection }

// establish makes the connection Ready.
func (b *bridge) establish() error {
	attr, err := b.conn.lane.QP().Query()
	switch {
	case err != nil:
		return b.conn.deviceError(err)
	case attr.State != verbs.QPReadyToSend:
		return fmt.Errorf("%w: the queue pair is in the state %v; modify it to %v first", ErrNotReady, attr.State, verbs.QPReadyToSend)
	}
	b.adopt(&attr)
	b.conn.ready()
	return nil
}

// adopt takes over the attributes that the program has agreed on with the peer.
func (b *bridge) adopt(attr *verbs.QPAttr) {
	conn := b.conn
	conn.path.mtu, conn.path.maxReads = attr.PathMTU, attr.MaxInitReadAtomic
	conn.peer.gid, conn.peer.qpn = attr.Address.DGID, attr.DestQPN
	own := &conn.ctx.port.State().GID
	conn.addrs = [2]netip.AddrPort{
		netip.AddrPortFrom(own.GID.Addr(), own.UDPPort),
		netip.AddrPortFrom(attr.Address.DGID.Addr(), attr.Address.UDPPort),
	}
	conn.lane.Connected()
}

// handle implements establishment. A message is reported when the program has called Established.
func (b *bridge) handle(ev event) {
	if ev.kind == deadlinePassed {
		b.conn.fail(b.conn.timeoutError(b.conn.ctx.set.ConnectTimeout))
	}
}

func (b *bridge) peer() life.Peer { return life.Unknown }
func (b *bridge) polls() bool     { return false }
func (b *bridge) tell()           {}

func (b *bridge) release() {}

// disconnectMethod implements establishment: the tasks complete before the queue pair ends. The
// peer is not notified, and may have left.
func (b *bridge) disconnectMethod() life.DisconnectMethod {
	if b.conn.state() == Ready {
		return life.Silent
	}
	return life.Abort
}

func (b *bridge) queuePairShut() {}
