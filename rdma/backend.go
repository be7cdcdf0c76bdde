package rdma

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/verbs"
)

// backend is a context as the pe.Backend of its engine.
type backend struct{ c *base }

// Host is the machine of the device, which the engine asks for.
func (b backend) Host() host.Host { return b.c.host }

// phase is the phase of a context on its way to Idle.
type phase int

const (
	phaseUp       phase = iota
	phaseDraining       // connections are closed; their tasks come back
	phaseEmptying       // queue pairs are destroyed; their last completions are handled
	phaseFlushing       // the shared receive queue is destroyed; receives come back
	phaseClosing        // the connection manager is closed; calls of helpers return
	phaseDown
)

// Start implements pe.Backend.
func (b backend) Start() (bool, error) {
	c := b.c
	if err := c.acquire(); err != nil {
		return false, errors.Join(err, c.release())
	}
	return false, nil
}

// acquire takes from the device what all connections share.
func (c *base) acquire() error {
	s := c.set
	c.sendDepth, c.recvDepth = c.depths()
	c.phase, c.flushed = phaseUp, 0
	c.recvPosted, c.awaited = 0, 0
	c.startingReported, c.kept = false, nil
	c.quiet = false
	c.events.Clear()
	c.deferred.Clear()
	if err := c.refreshPort(); err != nil {
		return err
	}

	// At most, all tasks complete, and one signal of each connection.
	receives := c.receiveTotal
	if c.each != nil {
		receives = c.each.n * s.MaxConnections
	}
	entries := c.requests + receives + s.MaxConnections
	if c.sharedFits = entries+SharedTasks <= s.maxCQE; c.sharedFits {
		entries += SharedTasks
	}
	if entries > s.maxCQE {
		if c.each != nil {
			return fmt.Errorf("%w: the pools hold %d tasks, and %d connections have %d receives each, but a completion queue of %s holds only %d entries; lower Config.MaxConnections or the number in ReceivePerConnection, or make the pools smaller",
				ErrRange, c.requests, s.MaxConnections, c.each.n, c.dev.Name(), s.maxCQE)
		}
		return fmt.Errorf("%w: the pools hold %d tasks for %d connections, but a completion queue of %s holds only %d entries; make the pools smaller",
			ErrRange, c.requests+receives, s.MaxConnections, c.dev.Name(), s.maxCQE)
	}
	var err error
	poller := any(nil)
	if s.caps.connections() {
		poller = c.Engine()
	}
	if c.cq, err = c.dev.CreateCQ(verbs.CQInit{Capacity: entries, Fields: s.completionFields, Poller: poller}); err != nil {
		return fmt.Errorf("create a completion queue of %d entries on %s: %w", entries, c.dev.Name(), err)
	}
	c.cq.OnCompletion(c.control.Wake)
	c.lanes.Attach(c.cq, c.received)
	if s.completionFields != 0 {
		c.lanes.Extend()
	}
	if c.scratch, err = mmap.New(c.dev, mmap.Config{
		Size: 8 * (s.MaxConnections + c.words), Permissions: mmap.LocalReadWrite, PD: s.PD,
	}); err != nil {
		return err
	}
	key, err := c.scratch.LKey(s.PD)
	if err != nil {
		return err
	}
	c.scratchSG = verbs.SGE{Addr: c.scratch.Addr(), Length: 8, LKey: key}
	if err := c.service.open(); err != nil {
		return err
	}
	if c.messageBuffers != nil {
		if err := c.messageBuffers.open(); err != nil {
			return err
		}
	}
	c.openDeadlines()
	c.unsubscribe = c.dev.SubscribeEvents(c.queueEvent)
	c.postReceives() // the receives of messageBuffers, before there is a connection
	return nil
}

// release gives back what acquire took, even if acquire failed midway.
func (c *base) release() error {
	var errs []error
	if c.unsubscribe != nil {
		c.unsubscribe()
	}
	c.closeDeadlines()
	c.lanes.Release()
	c.helpers.done.Wait() // calls are left only if Start has failed
	c.manager.runQueued()
	errs = append(errs, c.service.release()...)
	if c.srq != nil {
		errs = append(errs, c.srq.Close())
	}
	if c.cq != nil {
		errs = append(errs, c.cq.Close())
	}
	if c.messageBuffers != nil {
		errs = append(errs, c.messageBuffers.close())
	}
	errs = append(errs, c.closeMemory(c.scratch))
	c.cq, c.srq, c.recvQueue, c.scratch, c.unsubscribe = nil, nil, nil, nil, nil
	c.deferred.Clear()
	c.reports.Clear()
	return errors.Join(errs...)
}

// closeMemory closes a map of the context's own, which may be nil. A map that the device may
// still use stays open until the device is closed.
func (c *base) closeMemory(m *mmap.Map) error {
	if m == nil || c.kept != nil {
		return nil
	}
	return m.Close()
}

// keep ends the context if an object that could not be destroyed may still use memory.
func (c *base) keep(reason error) {
	if c.kept != nil || reason == nil {
		return
	}
	c.kept = reason
	// The error does not match ErrMemoryKept, since not every task that it flushes has such
	// memory.
	c.failWith(fmt.Errorf("%w: context %q on %s: %v", ErrDevice, c.set.Name, c.dev.Name(), reason))
}

// settle makes sure that the device no longer uses the memory of a drained lane.
func (c *base) settle(l *lane.Lane) {
	if n := l.Posted(); n > 0 {
		c.set.Log.Warn().Str("context", c.set.Name).Uint32("queue pair", l.Num()).Int("requests", n).
			Msg("the device did not complete its requests in time; destroying the queue pair")
	}
	c.keep(l.Settle())
}

// Progress implements pe.Backend.
func (b backend) Progress() int {
	c := b.c
	c.inside = true
	defer c.leave()
	quiet := c.quiet && !c.woken.Load()
	c.quiet = false // until this pass has ended: a callback may panic
	if quiet {
		return c.quietPass()
	}
	c.woken.Store(false)
	c.takeEvents()
	other := c.service.beforePoll()
	if c.manager.pending.Load() {
		other += c.manager.runQueued()
	}
	if c.deadlines.due.Load() {
		other += c.expire()
	}
	c.flush()
	return c.finishPass(c.poll(), other)
}

// quietPass is a pass in which there can be nothing but requests to post and completions.
func (c *base) quietPass() int {
	c.flush()
	completed := c.poll()
	if completed == 0 {
		c.quiet = true
		return 0
	}
	other := c.service.afterPoll()
	c.flush()
	if other > 0 || c.woken.Load() || c.lanes.Busy() || c.service.busy() {
		return c.finishPass(completed, other)
	}
	c.quiet = true
	return completed
}

// finishPass does the work that follows completions. The arguments are how many completions and how
// much other work this pass has handled so far; it returns the total.
func (c *base) finishPass(completed, other int) int {
	if handled := c.handleEvents(); handled > 0 {
		other += handled
		completed += c.poll() // tasks of connections that have ended come back at once
	}
	other += c.service.afterPoll()
	c.flush()
	other += c.endLanes()
	other += c.runReports()
	if c.startable() {
		c.control.Started()
	}
	c.service.changeState()
	c.flush()
	if c.phase != phaseUp {
		other += c.advance()
	}
	c.quiet = other == 0 && c.phase == phaseUp && c.State() == pe.Running && !c.hasEvents() && !c.service.busy()
	return completed + other
}

// poll handles completions.
func (c *base) poll() int {
	n, err := c.lanes.Poll()
	if err != nil {
		c.breakDown(err)
	}
	return n
}

// flush posts all waiting tasks that there is room for. Receives go first, so that a message
// which the peer sends in reply to a request finds one.
func (c *base) flush() {
	if c.receivesPostable() {
		c.postReceives()
	}
	c.lanes.Flush()
}

func (c *base) leave() { c.inside = false }

// endLanes flushes and destroys connections, and the endpoint, once the device has returned
// their requests. It returns how many tasks and connections ended.
func (c *base) endLanes() int {
	n := 0
	for l := c.lanes.Drained(); l != nil; l = c.lanes.Drained() {
		n += l.Owner().(laneDrainer).drained()
	}
	return n + c.service.afterDrain()
}

// startable reports whether nothing keeps the context in Starting any more.
func (c *base) startable() bool {
	return c.awaited == 0 && c.startingReported && c.State() == pe.Starting
}

// Arm implements pe.Backend.
func (b backend) Arm() bool {
	c := b.c
	if c.lanes.Busy() || c.receivesPostable() || c.hasEvents() || c.manager.pending.Load() || c.deadlines.due.Load() ||
		c.reports.Len() > 0 || c.startable() || c.advanceable() || c.service.busy() {
		return false
	}
	if !c.lanes.Broken() {
		armed, err := c.cq.Arm(false)
		if errors.Is(err, verbs.ErrNotSupported) {
			return false // a device without completion events, such as an old EFA, is polled
		}
		if err != nil {
			c.breakDown(err)
		}
		if !armed {
			return false
		}
	}
	return true
}

// Stop implements pe.Backend.
func (b backend) Stop() {
	c := b.c
	c.phase = phaseDraining
	c.manager.stop()
	c.service.stop()
	c.wake()
}

// Idle implements pe.Backend.
func (b backend) Idle() {
	if err := b.c.release(); err != nil {
		b.c.set.Log.Warn().Err(err).Str("context", b.c.set.Name).Msg("failed to release the device's resources")
	}
}

// breakDown ends a context whose completion queue fails.
func (c *base) breakDown(err error) {
	c.lanes.Break()
	c.failWith(fmt.Errorf("%w: completion queue of context %q on %s: %w", ErrDevice, c.set.Name, c.dev.Name(), err))
	c.service.giveUp()
}

// runReports calls the program for connections that changed.
func (c *base) runReports() int {
	n := 0
	for ; c.reports.Len() > 0; n++ {
		r := c.reports.Pop()
		if r.request != nil {
			if r.request.id != nil { // the peer has not given up meanwhile
				r.request.listener.cfg.OnRequest(r.request)
				c.control.Yield()
			}
			continue
		}
		c.service.notify(r)
		c.control.Yield()
	}
	return n
}

// advanceable reports whether advance has work.
func (c *base) advanceable() bool {
	switch c.phase {
	case phaseDraining:
		return c.service.drained()
	case phaseEmptying, phaseFlushing:
		return true
	case phaseClosing:
		return c.helpers.busy == 0
	}
	return false
}

// advance moves a stopping context on to its next phase.
func (c *base) advance() int {
	switch c.phase {
	case phaseDraining:
		if !c.service.drained() {
			return 0
		}
		c.phase = phaseEmptying
		return 1
	case phaseEmptying:
		// Completions that came before the queue pairs were destroyed.
		if c.lanes.Fetch() {
			return 1
		}
		if c.srq != nil {
			if err := c.srq.Close(); err != nil {
				c.set.Log.Warn().Err(err).Str("context", c.set.Name).Msg("failed to close the shared receive queue")
				if !errors.Is(err, verbs.ErrNoDevice) {
					c.keep(lane.Kept("the shared receive queue", err))
				}
			}
			c.srq = nil
		}
		c.phase = phaseFlushing
		return 1
	case phaseFlushing:
		n := 1
		for ; c.flushed < len(c.receives) && n < lane.PollBudget; c.flushed++ {
			n += c.flushReceive(c.receives[c.flushed])
		}
		if c.flushed == len(c.receives) {
			c.phase = phaseClosing
			c.manager.close()
		}
		return n
	case phaseClosing:
		if c.helpers.busy > 0 {
			return 0
		}
		c.phase = phaseDown
		c.control.Stopped()
		return 1
	}
	return 0
}
