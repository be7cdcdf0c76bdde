package rdma

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/verbs"
)

// Context is an RDMA context: connections, and the tasks that run on them. It is
// driven by an engine (package pe).
type Context struct {
	*pe.Core
	control *pe.Control
	dev     verbs.Device
	set     *settings

	onConnection func(*Connection, ConnectionState, error)

	requests []*request // by the ID of their work requests
	receives []*ReceiveTask
	words    int // 8-byte words that atomics and sync events need

	// What follows exists from Start to Idle.
	cq        verbs.CQ
	srq       verbs.SRQ // nil without receives
	sendDepth int       // of each connection
	recvDepth int
	scratch   *mmap.Map // hellos to be sent, by slot; then words of tasks
	scratchSG verbs.SGE
	hello     *mmap.Map // hellos received, by slot
	helloKey  uint32
	unsub     func()

	slots      []*Connection // nil: free
	free       []int         // slots
	byQPN      map[uint32]*Connection
	last       *Connection // found last in byQPN
	serial     uint64
	dirty      []*Connection // with tasks to be posted
	connecting []*Connection
	ailing     []*Connection // failed or closed, with something left to be done
	reports    []report
	changed    bool // a connection came to an end or got ready: look at the state
	tick       *time.Timer

	recvHead   *ReceiveTask // submitted and not posted
	recvTail   *ReceiveTask
	recvPosted int

	wcs     [pollBatch]verbs.WC
	wcNext  int
	wcCount int
	drained bool // the last look into the completion queue found it empty
	sendWRs [postBatch]verbs.SendWR
	recvWRs [postBatch]verbs.RecvWR

	alerts   alerts
	inside   bool // Progress is running
	phase    phase
	flushing int  // receives flushed so far
	broken   bool // the completion queue gives nothing any more
}

const (
	pollBatch = 32
	// postBatch is as many small messages as fit into one train of packets.
	postBatch = 64
	// pollBudget bounds the completions of one Progress.
	pollBudget = 4 * pollBatch
)

// alerts takes asynchronous events from the device's goroutine to the engine's.
type alerts struct {
	raised atomic.Bool
	mu     sync.Mutex
	list   []verbs.Event
	lost   bool // there were more than fit
}

const maxAlerts = 1024

type report struct {
	conn  *Connection
	state ConnectionState
	err   error
}

// New makes a context on an open device. It checks the whole configuration, and
// asks the device for nothing but its attributes until Start. Its errors match
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
	c := &Context{dev: dev, set: set}
	c.Core, c.control = pe.NewCore(set.Name, backend{c})
	if cfg.Engine != nil {
		if err := cfg.Engine.Connect(c); err != nil {
			return nil, fmt.Errorf("rdma: make a context: %w", err)
		}
	}
	return c, nil
}

// Device is the device the context was made on.
func (c *Context) Device() verbs.Device { return c.dev }

// PD is the protection domain of everything in the context.
func (c *Context) PD() verbs.PD { return c.set.PD }

// GID is the entry of the GID table that is the context's address.
func (c *Context) GID() verbs.GIDEntry { return c.set.gid }

// Capabilities is what the context could do at most on its device.
func (c *Context) Capabilities() Capabilities { return c.set.caps }

// Config returns the configuration with every default filled in and every time
// rounded to the one in effect. Queue sizes follow from the pools made so far.
func (c *Context) Config() Config {
	cfg := c.set.Config
	cfg.Engine = c.Engine()
	cfg.GIDIndex, cfg.RNRRetry, cfg.RetryCount = new(*cfg.GIDIndex), new(*cfg.RNRRetry), new(*cfg.RetryCount)
	cfg.SendQueueSize, cfg.RecvQueueSize = c.depths()
	return cfg
}

// depths are the sizes of the queues at the device, as they follow from the
// configuration and the pools.
func (c *Context) depths() (send, recv int) {
	send, recv = c.set.SendQueueSize, c.set.RecvQueueSize
	if send == 0 {
		send = min(len(c.requests), c.set.caps.MaxSends)
	}
	if recv == 0 {
		recv = min(len(c.receives), c.set.caps.MaxReceives)
	}
	return send, recv
}

// Connections returns the connections that have not been closed, oldest first.
// It allocates.
func (c *Context) Connections() []*Connection {
	var list []*Connection
	for _, conn := range c.slots {
		if conn != nil && conn.state != Closed {
			list = append(list, conn)
		}
	}
	sortBySerial(list)
	return list
}

// OnConnection sets the function that is told when a connection becomes Ready,
// Failed (with the reason) or Closed (with nothing left of it at the device). It
// runs inside Progress, never inside another callback, and replaces the previous
// one; nil sets none.
func (c *Context) OnConnection(f func(conn *Connection, state ConnectionState, err error)) {
	c.onConnection = f
}

// connectionOf finds the connection of a queue pair.
func (c *Context) connectionOf(qpn uint32) *Connection {
	if c.last == nil || c.last.qpn != qpn {
		c.last = c.byQPN[qpn]
	}
	return c.last
}

func (c *Context) report(conn *Connection, state ConnectionState, err error) {
	c.changed = true
	c.reports = append(c.reports, report{conn, state, err})
	switch log := c.set.Log.With().Str("context", c.set.Name).Stringer("connection", conn).Logger(); {
	case err != nil:
		log.Warn().Err(err).Msg("connection failed")
	default:
		log.Debug().Stringer("state", state).Msg("connection changed")
	}
	c.poke()
}

// poke has the engine call Progress, unless it is just doing so.
func (c *Context) poke() {
	if !c.inside {
		c.control.Wake()
	}
}
