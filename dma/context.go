package dma

import (
	"fmt"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/lane"
)

// Context copies memory. It is driven by an engine (package pe).
type Context struct {
	*pe.Core
	control *pe.Control
	dev     verbs.Device
	set     *settings
	tasks   int // in the pools

	// In the order of submission. Those before uncut are at the device as a whole,
	// that one perhaps in part; nil: all are.
	submitted fifo.List[*CopyTask]
	uncut     *fifo.Node[*CopyTask]

	lanes  lane.Group
	pieces []piece // ring, those from number first to next in use

	// What follows is of one run, from Start to Idle.
	cq          verbs.CQ
	lane        *lane.Lane // to itself
	unsubscribe func()
	events      lane.Events
	first, next uint64
	faults      [2]*TaskError // of either half of pieces, the first that was not flushed
	failed      bool          // some piece has failed
	phase       phase
	ended       bool // nothing is posted any more
	settled     bool // the device has nothing left of the lane
	inside      bool // Progress is running

	recvWRs [lane.PostBatch]verbs.RecvWR
	sendSGL []verbs.SGE // of all requests of a batch
	recvSGL []verbs.SGE
	spans   []span // scratch of checkOverlap
}

// phase is how far a context has come on its way to Idle.
type phase int

const (
	phaseUp       phase = iota
	phaseDraining       // the queue pair is in error; its tasks come back
	phaseDown
)

// New makes a context on an open device. It checks the whole configuration. Until
// Start the context takes nothing from the device but its attributes. Errors match
// ErrInvalid, ErrRange, ErrNotSupported and ErrGID, or are the device's or those of
// pe.Engine.Connect.
func New(dev verbs.Device, cfg Config) (*Context, error) {
	if dev == nil {
		return nil, fmt.Errorf("dma: make a context: %w: no device is given; open one first", ErrInvalid)
	}
	set, err := resolve(dev, cfg)
	if err != nil {
		return nil, fmt.Errorf("dma: make a context: %w", err)
	}
	c := &Context{dev: dev, set: set}
	c.Core, c.control = pe.NewCore(set.Name, backend{c})
	c.lanes.Limit(set.DrainTimeout, c.control.Wake)
	if cfg.Engine != nil {
		if err := cfg.Engine.Connect(c); err != nil {
			return nil, fmt.Errorf("dma: make a context: %w", err)
		}
	}
	return c, nil
}

// Device is the device the context was made on.
func (c *Context) Device() verbs.Device { return c.dev }

// PD is the protection domain that memory has to be registered in.
func (c *Context) PD() verbs.PD {
	if c.set == nil {
		return nil
	}
	return c.set.PD
}

// Config returns the configuration with every default filled in. The queue size
// follows from the pools made so far.
func (c *Context) Config() Config {
	if c.set == nil {
		return Config{}
	}
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

// poke has the engine call Progress, unless it is inside.
func (c *Context) poke() {
	if !c.inside {
		c.control.Wake()
	}
}
