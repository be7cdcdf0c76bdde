package rdma

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/rdma/internal/buffers"
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
	lane           *lane.Lane
}

// publish shows the present connection to other goroutines.
func (conn *Connection) publish() {
	v := &connectionView{
		state: conn.state(), err: conn.err, qpn: conn.lane.Num(), peerQPN: conn.peer.qpn, local: conn.addrs[0], peer: conn.addrs[1],
		acceptData: conn.acceptData, disconnectData: conn.disconnectData, mtu: conn.path.mtu, maxReads: conn.path.maxReads, lane: conn.lane,
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
//
// A connection is Connecting, then Ready. It is Exported before that until Connect has the peer's
// descriptor, or from ConnectRequest.Prepare to Accept. A failure makes it Failed; Close by either
// end makes it Closed. Connections.OnConnection reports each change. Tasks that are submitted
// before a connection is Ready wait until it is, in order; if it fails or is closed instead, they
// come back flushed, with the reason. Receives belong to no connection: each takes the next message
// of any connection, unless Connections.ReceivePerConnection gives each its own.
//
// A task that fails ends its connection (IBTA 9.9.2): all other tasks on it come back flushed,
// with the reason (TaskError). A request of the peer that this end had to refuse ends the
// connection too. Other connections go on. A Failed connection keeps its place among
// Config.MaxConnections until Close; a closed one gives it back when OnConnection reports
// Closed.
//
// How an end learns what became of its peer:
//
//   - The peer is not there. Connect waits for Config.ConnectTimeout (a minute), then the
//     connection fails with ErrTimeout.
//   - The peer closes the connection, or stops its context. When its posted tasks are done, it
//     writes a disconnect notice into 8 bytes of this end's memory that are reserved for that.
//     The connection is then Closed here too, with ErrPeerClosed. If both devices report writes
//     to these bytes as software devices do, this end completes the tasks
//     that it has posted, and answers with its own notice. The peer serves the tasks meanwhile,
//     so that a lost acknowledgement fails no task. Adapters do not report such writes: then the
//     tasks are flushed, even one that has arrived and whose acknowledgement was lost. The
//     closing end waits for its tasks and the notice for at most Config.CloseTimeout (one
//     second), and for the answer at most 500 ms of it. On connections made by address, messages
//     of the connection manager take the place of the notices.
//   - The peer rejects a Dial, does not listen, or does not answer: the connection fails with
//     ErrRejected, ErrNotListening or ErrUnreachable.
//   - The peer or the network dies. Tasks in flight fail with ErrRetryExceeded, and so does
//     the connection. When this end has no task in flight and has heard nothing of the peer
//     for Config.Keepalive (two seconds), it posts a keepalive, an empty write. A software
//     device that shares memory with a peer on this machine notices at once that the peer's
//     process has died.
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

// MTU is the path MTU, the smaller of the two ends'; zero before Connect.
func (conn *Connection) MTU() verbs.MTU { return conn.view().mtu }

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

// purpose is what a connection's signal is used for.
type purpose uint8

const (
	signalNone purpose = iota
	signalReady
	signalKeepalive
	signalDisconnect
	signalDrain // an empty write behind all tasks: when it has completed, so have they
)

var purposes = [...]string{"", "ready signal", "keepalive", "disconnect notice", "last write"}

// String names the purpose in errors.
func (p purpose) String() string { return purposes[p] }

// signalRequest is the one request that a connection makes for itself. It is ready signal,
// keepalive and disconnect notice, one after the other. All are writes: of 8 bytes to the
// connection's word at the peer, or of no bytes.
type signalRequest struct {
	send    lane.Request
	conn    *Connection
	purpose purpose
}

// transition takes a connection's queue pair from Init to Ready to Send. On adapters, the
// kernel then resolves the peer's address, which takes a second and more if the peer is down.
// So a helper does it, and repeats it while the peer is down. Nothing else uses the queue pair
// meanwhile: tasks wait in the lane. A promptQP needs no helper.
type transition struct {
	conn      *Connection
	attr      verbs.QPAttr
	done      func(err error) // called on the engine's goroutine, unless the connection ends before
	running   bool            // a helper has the queue pair
	shut      atomic.Bool     // the lane is to be shut when no helper has the queue pair; helpers read it
	postponed []func()        // to be run when no helper has the queue pair
	pause     time.Duration
	retry     deadline.Deadline // when to try again
	last      error             // why the last attempt failed; nil: it did not
}

// QP is the connection's queue pair, for a program that has made it with Bridge. The program
// changes only its state and attributes; the context posts requests and receives, and closes
// the queue pair. Any goroutine may call it.
func (conn *Connection) QP() verbs.QP { return conn.view().lane.QP() }

// bridged reports whether the program connects the queue pair.
func (conn *Connection) bridged() bool {
	return conn.start == nil && conn.dialled == "" && conn.accepted == nil
}

// Connections is a context of connections, and of the tasks that run on them. An engine
// (package pe) drives it. The transport service is RC or UC: Config.Transport.
type Connections struct {
	parts

	onConnection func(*Connection, ConnectionState, error)
	watchers     []*connectionWatcher // replaced as a whole

	// The fields below belong to one run, from Start to Idle.
	slots         []*Connection // nil: free; it grows up to MaxConnections
	free          []int         // slots
	byQPN         map[uint32]*Connection
	last          *Connection        // found last in byQPN
	windows       map[uint32]*Window // by windowTag
	serial        uint64
	started       time.Time              // origin of the times of keepalives
	usable        int                    // connections known to the program that are Exported, Connecting or Ready
	closedInPlace int                    // connections that are Closed and still have their places
	passing       fifo.List[*Connection] // in the phase life.Passing, in the order in which they are to be destroyed
	written       writtenWords
	retryWaiting  bool // acceptWaiting may find a request, since one came or a place became free
	// readyWords are the words that peers write ready signals and disconnect notices to, by slot.
	// Peers do not get its key: each gets the key of a region of one word.
	readyWords buffers.Buffers

	endsWithLast bool  // the last connection was closed, and EndWithLastConnection is set
	ended        bool  // a connection that counts (not unaccepted) has ended
	lastFailure  error // why the last of these connections failed; nil: it was closed
	interrupted  error // the context then fails with it; nil: it stops
}

// Config returns the configuration with every default filled in and every time rounded to
// the one in effect. Queue sizes follow from the pools made so far; GIDIndex and MTU are those
// of the port at present.
func (c *Connections) Config() Config { return c.config() }

// List returns the connections that are not Closed, Failed ones included,
// oldest first. It allocates.
func (c *Connections) List() []*Connection {
	c.control.Check("list the connections")
	var list []*Connection
	for _, conn := range c.slots {
		if conn != nil && conn.state() != Closed {
			list = append(list, conn)
		}
	}
	sortBySerial(list)
	return list
}

// OnConnection sets the function that is called when a connection becomes
// Connecting, Ready, Failed (with the reason) or Closed (with ErrPeerClosed if the
// peer closed it, otherwise with nil). Closed is reported when nothing of the
// connection is left at the device, and all of its tasks have come back. The function
// runs on the engine's goroutine, inside Progress, never inside another callback, and
// replaces the previous one; nil sets none. In it, connections may be closed and
// exported, and tasks submitted.
func (c *Connections) OnConnection(f func(conn *Connection, state ConnectionState, err error)) {
	c.control.Check("set the function for connections")
	c.onConnection = f
}

// connectionWatcher is a function given to WatchConnections.
type connectionWatcher struct {
	f func(*Connection, ConnectionState, error)
}

// WatchConnections adds a function that is called like that of OnConnection, and after
// it, until stop is called. It is for packages that build on contexts; the function of
// OnConnection is the program's. It belongs to the goroutine that drives the engine.
func (c *Connections) WatchConnections(f func(conn *Connection, state ConnectionState, err error)) (stop func()) {
	c.control.Check("watch the connections")
	w := &connectionWatcher{f}
	c.watchers = append(slices.Clip(c.watchers), w)
	return func() {
		w.f = nil // a call may be about to begin
		c.watchers = slices.DeleteFunc(slices.Clone(c.watchers), func(o *connectionWatcher) bool { return o == w })
	}
}

// connectionOf finds the connection of a queue pair.
func (c *Connections) connectionOf(qpn uint32) *Connection {
	if c.last == nil || c.last.lane.Num() != qpn {
		c.last = c.byQPN[qpn]
	}
	return c.last
}

// hasRoom reports whether another connection may exist.
func (c *Connections) hasRoom() bool { return len(c.free) > 0 || len(c.slots) < c.set.MaxConnections }

// fullAdvice says what takes the places when there is no room.
func (c *Connections) fullAdvice() string {
	if c.closedInPlace == 0 {
		return fmt.Sprintf("all %d connections are in use; close one, or raise Config.MaxConnections", c.set.MaxConnections)
	}
	return fmt.Sprintf("%d of %d places are held by connections that are closing; wait for OnConnection to report one Closed, or raise Config.MaxConnections",
		c.closedInPlace, c.set.MaxConnections)
}

// nextSlot is the slot of the next connection, which takes it with occupy.
func (c *Connections) nextSlot() int {
	if n := len(c.free); n > 0 {
		return c.free[n-1]
	}
	return len(c.slots)
}

func (c *Connections) occupy(conn *Connection) {
	if n := len(c.free); n > 0 {
		c.free = c.free[:n-1]
		c.slots[conn.slot] = conn
		return
	}
	c.slots = append(c.slots, conn)
}

func (c *Connections) vacate(conn *Connection) {
	c.closedInPlace--
	c.slots[conn.slot] = nil
	c.free = append(c.free, conn.slot)
	c.retryWaiting = true
}

func sortBySerial(list []*Connection) {
	slices.SortFunc(list, func(a, b *Connection) int { return cmp.Compare(a.id, b.id) })
}
