package dma

import (
	"fmt"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/pe/backend"
	"github.com/verbena-rdma/verbena/verbs"
)

// Context copies memory. An engine drives it (package pe).
type Context struct {
	*pe.Core
	control backend.Control
	dev     verbs.Device
	set     *settings
	tasks   int // in the pools

	// submitted has the tasks in the order of submission. Those before unposted are posted in
	// full, unposted itself perhaps in part. If unposted is nil, all are.
	submitted fifo.List[*CopyTask]
	unposted  *fifo.Node[*CopyTask]

	lanes    lane.Group
	segments []segment // a ring; the segments from number first up to next are in use

	// The following fields are for one run, from Start to Idle.
	cq          verbs.CQ
	lane        *lane.Lane // connected to itself
	unsubscribe func()
	events      lane.Events
	first, next uint64
	faults      [2]*TaskError // for each half of segments, the first error that is not a flush
	failed      bool          // a segment has failed
	phase       phase
	ended       bool // nothing is posted any more
	settled     bool // the device has nothing left of the lane
	inside      bool // Progress is running

	recvWRs [lane.PostBatch]verbs.RecvWR
	sendSGL []verbs.SGE // for all requests of a batch
	recvSGL []verbs.SGE
	spans   []span // scratch of checkOverlap
}

// phase is the progress of a context on its way to Idle.
type phase int

const (
	phaseUp       phase = iota
	phaseDraining       // the queue pair is in error; its tasks come back
	phaseDown
)

// New makes a context on an open device. It checks the whole configuration. Until Start, the
// context only queries the device. Errors match ErrInvalid, ErrRange, ErrNotSupported and
// ErrGID, or are those of the device and of pe.Engine.Connect.
func New(dev verbs.Device, cfg Config) (*Context, error) {
	if dev == nil {
		return nil, fmt.Errorf("dma: make a context: %w: no device is given; open one first", ErrInvalid)
	}
	set, err := resolve(dev, cfg)
	if err != nil {
		return nil, fmt.Errorf("dma: make a context: %w", err)
	}
	c := &Context{dev: dev, set: set}
	c.Core, c.control = backend.New(set.Name, asBackend{c})
	c.lanes.Limit(lane.DefaultLimit, c.control.Wake)
	if cfg.Engine != nil {
		if err := cfg.Engine.Connect(c); err != nil {
			return nil, fmt.Errorf("dma: make a context: %w", err)
		}
	}
	return c, nil
}

// Device is the device the context was made on.
func (c *Context) Device() verbs.Device { return c.dev }

// PD is the protection domain in which memory must be registered.
func (c *Context) PD() verbs.PD { return c.set.PD }

// Config returns the configuration with every default filled in. The queue size depends on the
// pools made so far.
func (c *Context) Config() Config {
	cfg := c.set.Config
	cfg.Engine = c.Engine()
	cfg.GIDIndex, cfg.QueueSize = new(*cfg.GIDIndex), c.queueSize()
	return cfg
}

func (c *Context) queueSize() int {
	if c.set.QueueSize > 0 {
		return c.set.QueueSize
	}
	return min(max(c.tasks, minQueue), c.set.maxQueue)
}

// poke makes the engine call Progress, unless Progress is running.
func (c *Context) poke() {
	if !c.inside {
		c.control.Wake()
	}
}
