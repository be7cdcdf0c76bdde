package rdma

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/lane"
)

// Context is an RDMA context: connections, or an endpoint of datagrams, and the tasks that
// run on them. It is driven by an engine (package pe).
type Context struct {
	*pe.Core
	control *pe.Control
	dev     verbs.Device
	set     *settings
	port    atomic.Pointer[portView] // replaced as a whole

	onConnection func(*Connection, ConnectionState, error)
	watchers     []*connectionWatcher // replaced as a whole

	requests int // tasks for send queues, of all pools
	receives []*receive
	inbox    *inbox // nil unless Receive was called
	shared   *Pool
	words    int // 8-byte words that atomics and sync events need
	lanes    lane.Group
	peers    map[EndpointAddr]*Peer // that a context of datagrams knows
	heard    fifo.List[*Peer]       // those of them that it knows from messages alone, the oldest first

	// What follows is of one run, from Start to Idle.
	cq          verbs.CQ
	srq         verbs.SRQ // nil without receives
	recvQueue   receiveQueue
	datagrams   *datagrams // nil in a context of connections
	sendDepth   int        // of each lane
	recvDepth   int
	scratch     *mmap.Map // words that signals of connections send, by slot; then words of tasks
	scratchSG   verbs.SGE
	readyWords  *mmap.Map // words that peers write ready signals and goodbyes to, by slot
	unsubscribe func()

	slots   []*Connection // nil: free
	free    []int         // slots
	byQPN   map[uint32]*Connection
	last    *Connection        // found last in byQPN
	windows map[uint32]*Window // by windowTag
	serial  uint64
	run     uint64 // counts the runs
	awaited int    // connections, and calls of HoldStarting, that keep the context in Starting
	usable  int    // connections of the program's that are Exported, Connecting or Ready

	retiring  fifo.Queue[*Connection] // closed, to be destroyed
	reports   fifo.Queue[report]
	deadlines deadlines
	events    lane.Events
	held      fifo.Queue[heldEvent]
	written   writtenWords
	manager   connectionManager
	helpers   helpers

	sharedFits bool // there is room for the tasks of the shared pool

	recvWaiting fifo.List[*receive]    // submitted, in order, and not posted
	hungry      fifo.List[*Connection] // with receive queues of their own, which have room for more
	recvPosted  int
	recvWRs     [lane.PostBatch]verbs.RecvWR
	arrival     arrival // the one that is being handled

	startingReported bool  // the program has been notified that the context is Starting
	endsWithLast     bool  // the last connection was closed, and EndWithLastConnection is set
	cutOff           error // the context fails with it then; nil: it stops
	inside           bool  // Progress is running
	phase            phase
	flushed          int   // receives flushed so far
	kept             error // why the device may still use memory that was given to it; nil: it does not
}

// report is what the program is still to be told: of a connection, or of a request for
// one.
type report struct {
	conn    *Connection
	state   ConnectionState
	err     error
	request *ConnectRequest
	held    bool // it is for the function of DialConfig.Held
}

// New makes a context on an open device. It checks the whole configuration. Until
// Start the context takes nothing from the device but its attributes. Errors match
// ErrInvalid, ErrRange, ErrNotSupported and ErrGID, or are the device's or those of
// pe.Engine.Connect.
func New(dev verbs.Device, cfg Config) (*Context, error) {
	if dev == nil {
		return nil, fmt.Errorf("rdma: make a context: %w: no device is given; open one first", ErrInvalid)
	}
	set, err := resolve(dev, cfg)
	if err != nil {
		return nil, fmt.Errorf("rdma: make a context: %w", err)
	}
	c := &Context{dev: dev, set: set, words: SharedTasks}
	c.port.Store(&set.port)
	c.Core, c.control = pe.NewCore(set.Name, backend{c})
	if cfg.Engine != nil {
		if err := cfg.Engine.Connect(c); err != nil {
			return nil, fmt.Errorf("rdma: make a context: %w", err)
		}
	}
	c.lanes.Limit(set.DrainTimeout, c.control.Wake)
	c.written.wake = c.control.Wake
	c.manager.ctx, c.helpers.add = c, c.manager.add
	c.Watch(func(_, next pe.State) {
		if next == pe.Starting {
			c.startingReported = true
			c.poke()
		}
	})
	return c, nil
}

// Device is the device the context was made on.
func (c *Context) Device() verbs.Device { return c.dev }

// PD is the protection domain of everything in the context.
func (c *Context) PD() verbs.PD { return c.settings().PD }

// GID is the entry of the GID table that is the context's address at present.
func (c *Context) GID() verbs.GIDEntry { return c.portView().gid }

// Capabilities is what the context could do at most on its device.
func (c *Context) Capabilities() Capabilities {
	caps := c.settings().caps
	caps.MaxSend = c.portView().maxSend
	return caps
}

// settings are those of New; of a context that New did not make they are empty.
func (c *Context) settings() *settings {
	if c.set == nil {
		return &settings{}
	}
	return c.set
}

// Config returns the configuration with every default filled in and every time
// rounded to the one in effect. Queue sizes follow from the pools made so far; GIDIndex and
// MTU are those of the port at present.
func (c *Context) Config() Config {
	if c.set == nil {
		return Config{}
	}
	cfg := c.set.Config
	cfg.Engine = c.Engine()
	port := c.portView()
	cfg.MTU, cfg.GIDIndex = port.mtu, new(port.gid.Index)
	cfg.RNRRetry, cfg.RetryCount = new(*cfg.RNRRetry), new(*cfg.RetryCount)
	cfg.SendQueueSize, cfg.RecvQueueSize = c.depths()
	return cfg
}

// depths are the sizes of the queues at the device, as they follow from the
// configuration and the pools.
func (c *Context) depths() (send, recv int) {
	send, recv = c.set.SendQueueSize, c.set.RecvQueueSize
	if send == 0 {
		send = min(cmp.Or(c.requests, sharedDepth), defaultSendQueue, c.set.caps.MaxSends)
	}
	if recv == 0 {
		recv = min(len(c.receives), c.set.caps.MaxReceives)
	}
	return send, recv
}

// Connections returns the connections that are not Closed, Failed ones included,
// oldest first, without those that a package holds (DialConfig.Held). It allocates.
func (c *Context) Connections() []*Connection {
	c.control.Check("list the connections")
	var list []*Connection
	for _, conn := range c.slots {
		if conn != nil && conn.state != Closed && !conn.hidden() {
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
func (c *Context) OnConnection(f func(conn *Connection, state ConnectionState, err error)) {
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
func (c *Context) WatchConnections(f func(conn *Connection, state ConnectionState, err error)) (stop func()) {
	c.control.Check("watch the connections")
	w := &connectionWatcher{f}
	c.watchers = append(slices.Clip(c.watchers), w)
	return func() {
		w.f = nil // it may be just about to be called
		c.watchers = slices.DeleteFunc(slices.Clone(c.watchers), func(o *connectionWatcher) bool { return o == w })
	}
}

// connectionOf finds the connection of a queue pair.
func (c *Context) connectionOf(qpn uint32) *Connection {
	if c.last == nil || c.last.lane.Num() != qpn {
		c.last = c.byQPN[qpn]
	}
	return c.last
}

func (c *Context) report(conn *Connection, state ConnectionState, err error) {
	c.reports.Push(report{conn: conn, state: state, err: err, held: conn.hidden()})
	event := c.set.Log.Debug()
	if state == Failed {
		event = c.set.Log.Warn().Err(err)
	}
	event.Str("context", c.set.Name).Stringer("connection", conn).Stringer("state", state).Msg("connection changed")
	c.poke()
}

// poke has the engine call Progress, unless it is inside.
func (c *Context) poke() {
	if !c.inside {
		c.control.Wake()
	}
}
