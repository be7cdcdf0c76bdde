package rdma

import (
	"cmp"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/verbs"
)

// base is what the two kinds of context have in common: the objects of the device, the side
// that the engine (package pe) drives, pools, receives, and the states from Start to Idle.
type base struct {
	*pe.Core
	control *pe.Control
	dev     verbs.Device
	host    host.Host // of dev: clock, random numbers and goroutines
	set     *settings
	service service
	port    atomic.Pointer[portView] // replaced as a whole

	// woken: there may be something other than requests to post and completions. Whoever sets it
	// first makes that visible.
	woken atomic.Bool

	requests       int // tasks for send queues, of all pools
	receives       []*receive
	receiveTotal   int             // with those that no pool has made yet
	messageBuffers *messageBuffers // nil unless Receive was called
	each           *perConnection  // nil unless ReceivePerConnection was called
	words          int             // 8-byte words that atomics and sync events need
	lanes          lane.Group

	// The fields below belong to one run, from Start to Idle.
	cq          verbs.CQ
	srq         verbs.SRQ    // nil: there is none
	recvQueue   receiveQueue // nil: each connection has its own, or there are no receives
	sendDepth   int          // of each lane
	recvDepth   int
	scratch     *mmap.Map // words that signals of connections send, by slot; then words of tasks
	scratchSG   verbs.SGE
	unsubscribe func()

	awaited int // connections and listeners that keep the context in Starting

	reports   fifo.Queue[report]
	deadlines deadlines
	events    lane.Events
	deferred  fifo.Queue[deferredEvent]
	manager   connectionManager
	helpers   helpers

	sharedFits bool // there is room for the tasks of the shared pool

	recvWaiting fifo.List[*receive] // submitted, in order, and not posted
	recvPosted  int
	recvWRs     [lane.PostBatch]verbs.RecvWR
	arrival     arrival // the one that is being handled

	startingReported bool // the program has been notified that the context is Starting
	inside           bool // Progress is running
	quiet            bool // the last pass left nothing to do but requests and completions
	phase            phase
	flushed          int   // receives flushed so far
	kept             error // why the device may still use its memory; nil: it does not
}

// service is what differs between contexts of connections and of datagrams. Its methods run on
// the engine's goroutine.
type service interface {
	// open takes from the device what the service needs in addition to base, and release gives
	// it back, even if open failed midway.
	open() error
	release() []error
	// beforePoll does the work before completions are polled, afterPoll the work after. Both
	// return how much they did. notify calls the program.
	beforePoll() int
	afterPoll() int
	notify(r report)
	// afterDrain does what had to wait until nothing is left at the device, and returns how much
	// it did.
	afterDrain() int
	// changeState stops the context if it is to stop by itself.
	changeState()
	// busy reports whether there is work that neither a completion nor an event announces.
	busy() bool

	// eventQueued is called as soon as an event of a queue pair is taken from the device. event
	// handles it later, and returns 1 if it concerned the context.
	event(ev *verbs.Event) int
	eventQueued(ev *verbs.Event)
	// eventsLost finds queue pairs that are in error, and returns how many.
	eventsLost() int
	// portChanged is called when the port's address has another index.
	portChanged()

	// stop begins to end connections or the endpoint; drained reports whether every queue pair
	// was destroyed.
	stop()
	drained() bool
	// fail ends all connections for one reason; giveUp ends everything when no more
	// completions come.
	fail(err error)
	giveUp()

	// request handles a peer's request at a listener without OnRequest.
	request(q *ConnectRequest)

	// received handles the completion of a receive that succeeded, and receiveFailed of one
	// that failed. conn is the connection to whose own queue pair the receive was posted, or
	// nil.
	received(r *receive, conn *Connection, wc *verbs.WC)
	receiveFailed(r *receive, conn *Connection, wc *verbs.WC)
	// receivedUnsolicited handles a message that took no receive.
	receivedUnsolicited(wc *verbs.WC)
	// appendHeader appends the entry for the header of a receive, if the service has headers.
	appendHeader(sgl []verbs.SGE, r *receive) []verbs.SGE
	// needsReceives reports whether a connection with a receive queue of its own has room for more
	// receives. refill posts some to it.
	needsReceives() bool
	refill()
	// receivedOwn handles the completion of a receive that belongs to one connection.
	receivedOwn(wc *verbs.WC)
}

// report is a call of the program that is still to be made: for a connection, or for a request
// for one.
type report struct {
	conn    *Connection
	state   ConnectionState
	err     error
	request *ConnectRequest
}

// init makes what the two kinds of context have in common.
func (c *base) init(dev verbs.Device, set *settings, of service) {
	c.dev, c.host, c.set, c.service, c.words = dev, host.Of(dev), set, of, SharedTasks
	c.port.Store(&set.port)
	c.Core, c.control = pe.NewCore(set.Name, backend{c})
	c.lanes.Limit(set.DrainTimeout, c.wake)
	c.manager.ctx, c.helpers.host, c.helpers.runOnEngine = c, c.host, c.manager.runOnEngine
	c.Watch(func(_, next pe.State) {
		if next == pe.Starting {
			c.startingReported = true
			c.poke()
		}
	})
}

// Device is the device the context was made on.
func (c *base) Device() verbs.Device { return c.dev }

// PD is the protection domain of everything in the context.
func (c *base) PD() verbs.PD { return c.set.PD }

// GID is the entry of the GID table that is the context's address at present.
func (c *base) GID() verbs.GIDEntry { return c.portView().gid }

// Capabilities is what the context could do at most on its device.
func (c *base) Capabilities() Capabilities {
	caps := c.set.caps
	caps.MaxSend = c.portView().maxSend
	return caps
}

// config is the configuration that is in effect.
func (c *base) config() Config {
	cfg := c.set.Config
	cfg.Engine = c.Engine()
	port := c.portView()
	cfg.MTU, cfg.GIDIndex = port.mtu, new(port.gid.Index)
	cfg.SendQueueSize, cfg.RecvQueueSize = c.depths()
	return cfg
}

// depths returns the sizes of the queues at the device, which follow from the configuration
// and the pools.
func (c *base) depths() (send, recv int) {
	send, recv = c.set.SendQueueSize, c.set.RecvQueueSize
	if send == 0 {
		send = min(cmp.Or(c.requests, sharedDepth), defaultSendQueue, c.set.caps.MaxSends)
	}
	if recv == 0 {
		recv = min(c.receiveTotal, c.set.caps.MaxReceives)
	}
	return send, recv
}

// wake makes the engine call Progress, which then looks for everything. It may be called from
// any goroutine.
func (c *base) wake() {
	c.woken.Store(true)
	c.control.Wake()
}

// poke is wake on the engine's goroutine.
func (c *base) poke() {
	c.woken.Store(true)
	c.postLater()
}

// postLater makes the engine call Progress for requests that wait to be posted, unless Progress
// is running.
func (c *base) postLater() {
	if !c.inside {
		c.control.Wake()
	}
}
