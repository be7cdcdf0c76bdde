package rdma

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/pe/backend"
	"github.com/verbena-rdma/verbena/rdma/internal/deadline"
	"github.com/verbena-rdma/verbena/rdma/internal/dialling"
	"github.com/verbena-rdma/verbena/rdma/internal/helper"
	"github.com/verbena-rdma/verbena/verbs"
)

// queuePairs is the part of a context that has its queue pairs: the connections, or the
// endpoint of datagrams.
type queuePairs interface {
	part
	requestTaker
	// event handles an event of a queue pair or a port, and returns 1 if it concerned one.
	event(ev *verbs.Event) int
	// received handles the completion of a receive.
	received(wc *verbs.WC)
	// stop begins to end every queue pair: with an error if reason is not nil, otherwise as
	// closed by the program. If the completion queue has failed, no more completions come. stop
	// may be called again.
	stop(reason error)
	// gone reports whether every queue pair was destroyed.
	gone() bool
}

// parts are the parts that both kinds of context have.
type parts struct {
	core
	queuePairs queuePairs

	events
	manager   connectionManager
	helpers   helper.Pool
	deadlines deadlines
	lanes     lanes
	receives  receives
	scratch   scratch
	reports   reports

	established, failures atomic.Uint64 // connections: see Counters
	ready                 atomic.Int64

	list  []part
	quiet bool // the last pass left nothing to do but requests and completions
}

// init makes the parts of a context. written and last are parts that only connections have.
func (c *parts) init(dev verbs.Device, set *settings, queuePairs queuePairs, written, last part) {
	c.dev, c.host, c.set, c.port, c.queuePairs = dev, host.Of(dev), set, set.port, queuePairs
	c.Core, c.control = backend.New(set.Name, asBackend{c})
	c.Watch(func(_, next pe.State) {
		if next == pe.Starting {
			c.startingReported = true
			c.wake()
		}
	})
	c.events = events{core: &c.core, lanes: &c.lanes, handle: c.handleEvent}
	c.manager.core, c.manager.helpers, c.manager.reports, c.manager.owner = &c.core, &c.helpers, &c.reports, queuePairs
	c.helpers.Host, c.helpers.Device, c.helpers.RunOnEngine = c.host, dev.Name(), c.manager.runOnEngine
	c.manager.limiter = dialling.Limiter{Host: c.host, Wake: c.wake}
	c.deadlines.core = &c.core
	c.lanes.core, c.lanes.receives, c.lanes.received, c.lanes.failed = &c.core, &c.receives, queuePairs.received, c.breakDown
	c.lanes.Limit(lane.DefaultLimit, c.wake)
	c.receives.core = &c.core
	c.scratch.core, c.scratch.signals.n = &c.core, set.MaxConnections
	c.scratch.all = []*words{&c.scratch.signals}
	c.reports.core = &c.core
	c.list = c.inOrder(written, last)
}

// inOrder lists the parts in the order in which a pass asks them for work. They are opened in
// this order and closed in reverse.
func (c *parts) inOrder(written, last part) []part {
	list := []part{
		&c.events,                // notes which completions each event of the device has to follow
		written,                  // ready signals and disconnect notices of peers
		&c.manager,               // the connection manager, and results of helpers
		&c.deadlines,             // deadlines that have passed
		&c.lanes,                 // posts requests and receives, handles completions
		&c.receives,              //
		(*dueEvents)(&c.events),  // events whose completions have been handled
		&c.scratch,               //
		c.queuePairs,             // queue pairs that the device has given back, waiting requests and dials
		&c.reports,               // calls the program for connections that changed, and for requests
		&starting{core: &c.core}, // ends Starting
		last,                     // stops a context whose last connection was closed
		&stopping{c: c},          // moves a stopping context on to Idle
	}
	return slices.DeleteFunc(list, func(p part) bool { return p == nil })
}

// asBackend is a context as the backend.Backend of its engine.
type asBackend struct{ c *parts }

// Host is the machine of the device, which the engine asks for.
func (b asBackend) Host() host.Host { return b.c.host }

// Start implements backend.Backend.
func (b asBackend) Start() (bool, error) {
	c := b.c
	c.phase, c.awaited, c.startingReported, c.kept, c.quiet = phaseUp, 0, false, nil, false
	if err := c.refreshPort(); err != nil {
		return false, err
	}
	for _, p := range c.list {
		if err := p.open(); err != nil {
			return false, errors.Join(err, c.release())
		}
	}
	c.receives.post() // those of Receive, before there is a connection
	return false, nil
}

// release gives back what Start took.
func (c *parts) release() error {
	c.helpers.Wait() // calls are left only if Start has failed
	c.manager.work()
	var errs []error
	for i := len(c.list) - 1; i >= 0; i-- {
		errs = append(errs, c.list[i].close())
	}
	return errors.Join(errs...)
}

// Progress implements backend.Backend.
func (b asBackend) Progress() int {
	c := b.c
	c.inside = true
	defer c.leave()
	quiet := c.quiet && !c.woken.Load()
	c.quiet = false // until this pass has ended: a callback may panic
	if quiet {
		return c.quietPass()
	}
	return c.pass()
}

func (c *parts) leave() { c.inside = false }

// pass asks every part for work, and returns how much that was.
func (c *parts) pass() (n int) {
	c.woken.Store(false)
	for _, p := range c.list {
		n += p.work()
	}
	c.lanes.postAll()
	c.quiet = c.phase == phaseUp && c.State() == pe.Running && !c.anyBusy()
	return n
}

// quietPass is a pass in which there can be nothing but requests to post and completions,
// unless callbacks wake the context.
func (c *parts) quietPass() int {
	n := c.lanes.work()
	if n > 0 {
		c.lanes.postAll()
		if c.woken.Load() || c.lanes.HasWork() {
			return n + c.pass()
		}
	}
	c.quiet = true
	return n
}

// anyBusy reports whether a part is busy.
func (c *parts) anyBusy() bool {
	for _, p := range c.list {
		if p.busy() {
			return true
		}
	}
	return false
}

// Arm implements backend.Backend.
func (b asBackend) Arm() bool { return !b.c.anyBusy() && b.c.lanes.arm() }

// Stop implements backend.Backend.
func (b asBackend) Stop() {
	c := b.c
	c.phase = phaseDraining
	c.receives.Stop()
	c.manager.stop()
	c.queuePairs.stop(nil)
	c.wake()
}

// Idle implements backend.Backend.
func (b asBackend) Idle() {
	if err := b.c.release(); err != nil {
		b.c.control.Log().Warn().Err(err).Msg("failed to release the device's resources")
	}
}

// failWith ends the context and its connections, all for one reason.
func (c *parts) failWith(err error) {
	c.queuePairs.stop(err)
	c.control.Fail(fmt.Errorf("rdma: %w", err))
}

// breakDown ends a context whose completion queue fails.
func (c *parts) breakDown(err error) {
	c.lanes.Break()
	c.failWith(fmt.Errorf("%w: completion queue of context %q on %s: %w", ErrDevice, c.set.Name, c.dev.Name(), err))
}

// keep ends the context if an object that could not be destroyed may still use memory.
func (c *parts) keep(reason error) {
	if c.kept != nil || reason == nil {
		return
	}
	c.kept = reason
	// The error does not match ErrMemoryKept, since not every task that it flushes has such
	// memory.
	c.failWith(fmt.Errorf("%w: context %q on %s: %v", ErrDevice, c.set.Name, c.dev.Name(), reason))
}

// settle makes sure that the device no longer uses the memory of a drained lane.
func (c *parts) settle(l *lane.Lane) {
	if n := l.Posted(); n > 0 {
		c.control.Log().Warn().Uint32("queue pair", l.Num()).Int("requests", n).
			Msg("the device did not complete its requests in time; destroying the queue pair")
	}
	c.keep(l.Settle())
}

// config is the configuration that is in effect.
func (c *parts) config() Config {
	cfg := c.set.Config
	cfg.Engine = c.Engine()
	port := c.port.State()
	cfg.Path.MTU, cfg.Path.GIDIndex = port.MTU, new(port.GID.Index)
	cfg.SendQueueSize = c.lanes.depth()
	return cfg
}

// Listen accepts, through the connection manager, connections of peers that dial an address of
// the device, as in rdma_cm(7). Peers may use this SDK (Dial), or the connection manager of
// the kernel or of an adapter. The address is HOST:PORT. HOST is an IP address, a GID, or
// empty for all addresses of the device, those that it has since it was opened, and not those of
// other devices (route.Serve is for these); IPv6 addresses and GIDs are in brackets. With port 0
// the manager chooses one. The ports are those of RDMA_PS_TCP, which have nothing to do with
// the ports of TCP.
//
// Accepted connections are Connecting, then Ready, and OnConnection reports them as any other.
// Each takes one of Config.MaxConnections places. A context may have any number of listeners.
// They end with Close, or when the context stops. Accepted connections go on after Close.
//
// A context of UD answers peers that ask for its endpoint (ResolvePeer): at once, or, with
// OnRequest, through ConnectRequest.Answer. Its ports are those of RDMA_PS_UDP.
//
// It is legal in Starting and Running. A context in Starting waits for peers only if
// ListenConfig.Await is set. Listen fails with ErrInvalid for an address that is invalid or
// not the device's, with verbs.ErrInUse if another program listens on the port, and with
// ErrNotSupported on a device without a connection manager.
func (c *parts) Listen(addr string, cfg ListenConfig) (*Listener, error) {
	const op = "listen"
	if err := c.control.Owned(op); err != nil {
		return nil, err
	}
	if err := c.control.Require(op, pe.Starting, pe.Running); err != nil {
		return nil, err
	}
	l, err := c.manager.listen(addr, cfg)
	if err != nil {
		return nil, fmt.Errorf("rdma: listen on %q with context %q: %w", addr, c.set.Name, err)
	}
	return l, nil
}

// handleEvent handles an event of the device, and returns 1 if it concerned the context.
func (c *parts) handleEvent(ev *verbs.Event) int {
	switch ev.Type {
	case verbs.EventQPFatal, verbs.EventQPRequestError, verbs.EventQPAccessError, verbs.EventQPLastWQEReached, verbs.EventCommEstablished, verbs.EventPeerGone:
		return c.queuePairs.event(ev)
	case verbs.EventCQError:
		if ev.CQ != c.lanes.cq {
			return 0
		}
		c.breakDown(fmt.Errorf("the device reports: %v", ev.Type)) // completions are lost
		return 1
	case verbs.EventSRQError:
		if c.receives.SRQ() == nil || ev.SRQ != c.receives.SRQ() {
			return 0
		}
	case eventsLost, verbs.EventPortActive, verbs.EventPortError, verbs.EventGIDChange, verbs.EventLIDChange, verbs.EventPKeyChange:
		return c.portChanged(ev) + c.queuePairs.event(ev)
	case verbs.EventDeviceFatal:
	default:
		return 0
	}
	c.failWith(fmt.Errorf("%w: %s reports for context %q: %v", ErrDevice, c.dev.Name(), c.set.Name, ev.Type))
	return 1
}

// portChanged handles an event of a port. Connections go on, since the port or the address may
// come back. Their later errors name the port (deviceport.Problem).
func (c *parts) portChanged(ev *verbs.Event) int {
	if ev.Port != 0 && ev.Port != c.set.Path.Port {
		return 0
	}
	if err := c.refreshPort(); err != nil {
		c.control.Log().Warn().Err(err).Stringer("event", ev.Type).Msg("failed to query the port after an event")
	}
	return 1
}

// deadlines is the part of a context that has its deadlines.
type deadlines struct {
	deadline.Deadlines
	core *core
}

// open implements part.
func (d *deadlines) open() error {
	d.Open(d.core.host, d.core.wake)
	return nil
}

// work implements part: it handles the deadlines that have passed.
func (d *deadlines) work() int { return d.Work() }

// busy implements part.
func (d *deadlines) busy() bool { return d.Busy() }

// close implements part.
func (d *deadlines) close() error {
	d.Close()
	return nil
}

// starting is the part that ends Starting.
type starting struct {
	passive
	core *core
}

// work implements part.
func (s *starting) work() int {
	s.core.startIfReady()
	return 0
}

// busy implements part.
func (s *starting) busy() bool { return s.core.startable() }

// stopping is the part that moves a stopping context on to Idle.
type stopping struct {
	passive
	c *parts
}

// busy implements part.
func (s *stopping) busy() bool {
	switch c := s.c; c.phase {
	case phaseDraining:
		return c.queuePairs.gone()
	case phaseEmptying, phaseFlushing:
		return true
	case phaseClosing:
		return !c.helpers.Busy()
	}
	return false
}

// work implements part.
func (s *stopping) work() int {
	c := s.c
	if !s.busy() {
		return 0
	}
	switch c.phase {
	case phaseDraining:
		c.phase = phaseEmptying
	case phaseEmptying:
		// Completions that came before the queue pairs were destroyed.
		if c.lanes.Fetch() {
			return 1
		}
		c.keep(c.receives.closeShared())
		c.phase = phaseFlushing
	case phaseFlushing:
		n, all := c.receives.Flush()
		if all {
			c.phase = phaseClosing
			c.manager.shut()
		}
		return n + 1
	case phaseClosing:
		c.phase = phaseDown
		c.control.Stopped()
	}
	return 1
}

// GID is the entry of the GID table that is the context's address at present.
func (c *core) GID() verbs.GIDEntry { return c.port.State().GID }

// Capabilities is what the context could do at most on its device.
func (c *core) Capabilities() Capabilities {
	caps := c.set.caps
	caps.MaxSend = c.maxSend()
	return caps
}

// Sleeper is where the engine can sleep: see lane.Group.Sleeper.
func (b asBackend) Sleeper() host.Sleeper { return b.c.lanes.Sleeper() }
