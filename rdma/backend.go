package rdma

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/lane"
)

// backend is the side of a Context that the engine sees.
type backend struct{ c *Context }

// phase is how far a context has come on its way to Idle.
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
func (c *Context) acquire() error {
	s := c.set
	c.sendDepth, c.recvDepth = c.depths()
	c.phase, c.flushed = phaseUp, 0
	c.run++
	c.recvPosted, c.awaited, c.usable = 0, 0, 0
	c.startingReported, c.endsWithLast, c.cutOff, c.kept = false, false, nil, nil
	c.slots = make([]*Connection, s.MaxConnections)
	c.free = make([]int, s.MaxConnections)
	for i := range c.free {
		c.free[i] = s.MaxConnections - 1 - i
	}
	c.byQPN = make(map[uint32]*Connection)
	c.events.Clear()
	c.held.Clear()
	if err := c.refreshPort(); err != nil {
		return err
	}
	if s.Transport == verbs.RC && !s.receivesShared && c.recvDepth > 0 && c.recvDepth < s.MaxConnections {
		return fmt.Errorf("%w: %d receives can be at the device at a time, and Config.MaxConnections is %d; %s has no shared receive queues, so each connection needs one: post more receives, in pools or by Receive, and leave Config.RecvQueueSize at 0 or raise it, or lower Config.MaxConnections",
			ErrRange, c.recvDepth, s.MaxConnections, c.dev.Name())
	}

	// Never more than all tasks, and one signal of each connection.
	entries := c.requests + len(c.receives) + s.MaxConnections
	if c.sharedFits = entries+SharedTasks <= s.maxCQE; c.sharedFits {
		entries += SharedTasks
	}
	if entries > s.maxCQE {
		return fmt.Errorf("%w: the pools hold %d tasks for %d connections, and a completion queue of %s %d entries; make the pools smaller",
			ErrRange, c.requests+len(c.receives), s.MaxConnections, c.dev.Name(), s.maxCQE)
	}
	var err error
	fields := verbs.WCFields(0)
	if s.Transport == verbs.SRD {
		fields = verbs.WCSource
	}
	if c.cq, err = c.dev.CreateCQ(verbs.CQInit{Capacity: entries, Fields: fields, Poller: c.Engine()}); err != nil {
		return fmt.Errorf("create a completion queue of %d entries on %s: %w", entries, c.dev.Name(), err)
	}
	c.cq.OnCompletion(c.control.Wake)
	c.lanes.Attach(c.cq, c.received)
	if fields != 0 {
		c.lanes.Extend()
	}
	if len(c.receives) > 0 && s.Transport == verbs.RC && s.receivesShared {
		if c.srq, err = s.PD.CreateSRQ(verbs.SRQInit{MaxWR: c.recvDepth, MaxSGE: s.MaxRecvSGE}); err != nil {
			return fmt.Errorf("create a shared receive queue of %d receives on %s: %w", c.recvDepth, c.dev.Name(), err)
		}
		c.recvQueue = c.srq
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
	if s.Transport == verbs.RC {
		err = c.openReadyWords()
	} else {
		err = c.openDatagrams()
	}
	if err != nil {
		return err
	}
	if c.inbox != nil {
		if err := c.inbox.open(); err != nil {
			return err
		}
	}
	c.openDeadlines()
	c.unsubscribe = c.dev.SubscribeEvents(c.event)
	c.postReceives() // those of the inbox, before there is a connection
	return nil
}

// release gives back what acquire took, as far as it got.
func (c *Context) release() error {
	var errs []error
	if c.unsubscribe != nil {
		c.unsubscribe()
	}
	c.closeDeadlines()
	c.lanes.Release()
	c.helpers.done.Wait() // no call is left, except where Start has failed
	c.manager.handle()
	if c.datagrams != nil {
		c.datagrams.leaveGroups()
	}
	if c.datagrams != nil {
		errs = append(errs, c.datagrams.release()...)
	}
	if c.srq != nil {
		errs = append(errs, c.srq.Close())
	}
	if c.cq != nil {
		errs = append(errs, c.cq.Close())
	}
	if c.inbox != nil {
		errs = append(errs, c.inbox.close())
	}
	errs = append(errs, c.closeMemory(c.scratch), c.closeMemory(c.readyWords))
	c.cq, c.srq, c.scratch, c.readyWords, c.unsubscribe = nil, nil, nil, nil, nil
	c.recvQueue, c.datagrams = nil, nil
	for c.hungry.Pop() != nil {
	}
	c.slots, c.free, c.byQPN, c.last = nil, nil, nil, nil
	c.retiring.Clear()
	c.held.Clear()
	c.reports.Clear()
	return errors.Join(errs...)
}

// closeMemory closes a map of the context's own, which may be nil. What the device may still
// use stays open until the device is closed, which closes it.
func (c *Context) closeMemory(m *mmap.Map) error {
	if m == nil || c.kept != nil {
		return nil
	}
	return m.Close()
}

// keep ends the context where something that was not destroyed may still use memory.
func (c *Context) keep(reason error) {
	if c.kept != nil || reason == nil {
		return
	}
	c.kept = reason
	// Not every task that is flushed because of it has such memory: the error does not match ErrMemoryKept.
	c.failWith(fmt.Errorf("%w: context %q on %s: %v", ErrDevice, c.set.Name, c.dev.Name(), reason))
}

// settle sees to it that the device no longer uses the memory of a lane that is drained.
func (c *Context) settle(l *lane.Lane) {
	if n := l.Posted(); n > 0 {
		c.set.Log.Warn().Str("context", c.set.Name).Uint32("queue pair", l.Num()).Int("requests", n).
			Msg("the device has not given back what it had; destroying the queue pair")
	}
	c.keep(l.Settle())
}

// Progress implements pe.Backend.
func (b backend) Progress() int {
	c := b.c
	c.inside = true
	defer c.leave()
	n := 0
	c.takeEvents()
	if c.written.pending.Load() {
		n += c.written.handle()
	}
	if c.manager.pending.Load() {
		n += c.manager.handle()
	}
	if c.deadlines.due.Load() {
		n += c.expire()
	}
	c.flush()
	n += c.poll()
	if handled := c.handleEvents(); handled > 0 {
		n += handled + c.poll() // tasks of connections that have ended come back at once
	}
	if c.datagrams != nil {
		n += c.datagrams.resume()
	}
	c.flush()
	n += c.endLanes()
	if c.usable > 0 && c.startable() {
		c.control.Started() // before the program learns that connections are ready, so that it can submit tasks
	}
	n += c.runReports()
	c.changeState()
	c.flush()
	if c.phase != phaseUp {
		n += c.advance()
	}
	return n
}

// poll handles completions.
func (c *Context) poll() int {
	n, err := c.lanes.Poll()
	if err != nil {
		c.breakDown(err)
	}
	return n
}

// flush posts all tasks that wait, as far as there is room for them. Receives go first, so
// that what the peer sends because of a request meets them.
func (c *Context) flush() {
	if c.receivesPostable() {
		c.postReceives()
	}
	c.lanes.Flush()
}

func (c *Context) leave() { c.inside = false }

// endLanes flushes and destroys connections, and the endpoint, that the device has
// nothing left of, and returns how many tasks and connections came to their end.
func (c *Context) endLanes() int {
	n := 0
	if c.datagrams != nil {
		c.datagrams.stopped()
	}
	for l := c.lanes.Drained(); l != nil; l = c.lanes.Drained() {
		n += l.Owner().(laneEnd).drained()
	}
	n += c.destroyRetired()
	return n + c.manager.acceptWaiting() + c.manager.resumeDials()
}

// changeState takes the context to Running when its connections are ready, and stops
// it where it is to end with the last one. It comes after the callbacks for
// connections: in those, the program may stop the context, or export another
// connection after the last one.
func (c *Context) changeState() {
	if c.startable() {
		c.control.Started()
	}
	switch {
	case !c.stoppable():
	case c.cutOff != nil:
		c.control.Fail(c.cutOff)
	default:
		_ = c.Stop() // legal here in every state
	}
	c.endsWithLast = false
}

// startable reports whether nothing keeps the context in Starting any more.
func (c *Context) startable() bool {
	return c.awaited == 0 && c.startingReported && c.State() == pe.Starting
}

// stoppable reports whether the context is to stop because its last connection was
// closed.
func (c *Context) stoppable() bool { return c.endsWithLast && c.usable == 0 && c.phase == phaseUp }

// drained reports whether all connections, and the endpoint, have been destroyed.
func (c *Context) drained() bool {
	return len(c.free) == len(c.slots) && (c.datagrams == nil || c.datagrams.closed)
}

// Arm implements pe.Backend.
func (b backend) Arm() bool {
	c := b.c
	if c.lanes.Busy() || c.reports.Len() > 0 || c.receivesPostable() || c.events.Pending() || c.held.Len() > 0 ||
		c.written.pending.Load() || c.manager.pending.Load() || c.manager.acceptable() || c.manager.resumable.Len() > 0 ||
		c.deadlines.due.Load() || c.retiring.Len() > 0 && !c.lanes.Empty() || c.phase == phaseEmptying || c.phase == phaseFlushing ||
		c.startable() || c.stoppable() || c.phase == phaseDraining && c.drained() || c.phase == phaseClosing && c.helpers.busy == 0 {
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
	for _, conn := range c.slots {
		if conn != nil {
			conn.close()
		}
	}
	if c.datagrams != nil {
		c.datagrams.stop()
	}
	c.control.Wake()
}

// Idle implements pe.Backend.
func (b backend) Idle() {
	if err := b.c.release(); err != nil {
		b.c.set.Log.Warn().Err(err).Str("context", b.c.set.Name).Msg("releasing the device's resources")
	}
}

// breakDown ends a context whose completion queue fails.
func (c *Context) breakDown(err error) {
	c.lanes.Break()
	c.failWith(fmt.Errorf("%w: completion queue of context %q on %s: %w", ErrDevice, c.set.Name, c.dev.Name(), err))
	for _, conn := range c.slots {
		if conn != nil {
			conn.shut() // also one that is closing
			conn.lane.GiveUp()
		}
	}
	if c.datagrams != nil {
		c.datagrams.shut()
		c.datagrams.lane.GiveUp()
	}
}

// runReports calls the program for connections that changed.
func (c *Context) runReports() int {
	n := 0
	for ; c.reports.Len() > 0; n++ {
		r := c.reports.Pop()
		if r.request != nil {
			if r.request.id != nil { // the peer has not given up meanwhile
				r.request.listener.cfg.OnRequest(r.request)
			}
			continue
		}
		if r.held {
			r.conn.hold.changed(r.conn, r.state, r.err)
			continue
		}
		if c.onConnection != nil {
			c.onConnection(r.conn, r.state, r.err)
		}
		for _, w := range c.watchers {
			if w.f != nil {
				w.f(r.conn, r.state, r.err)
			}
		}
		if r.state == Failed && r.conn.closedOnFailure {
			r.conn.close()
		}
	}
	return n
}

// advance takes a context that is stopping further on its way.
func (c *Context) advance() int {
	switch c.phase {
	case phaseDraining:
		if !c.drained() {
			return 0
		}
		c.phase = phaseEmptying
		return 1
	case phaseEmptying:
		// Completions that came before the queue pairs went.
		if c.lanes.Fetch() {
			return 1
		}
		if c.srq != nil {
			if err := c.srq.Close(); err != nil {
				c.set.Log.Warn().Err(err).Str("context", c.set.Name).Msg("closing the shared receive queue")
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
