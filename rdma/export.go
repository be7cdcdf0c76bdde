package rdma

import (
	"cmp"
	"encoding/binary"
	"fmt"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/verbs"
)

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
