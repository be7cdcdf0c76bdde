package dma

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/verbs"
)

// asBackend implements backend.Backend for a Context.
type asBackend struct{ c *Context }

// Host is the machine of the device, which the engine asks for.
func (b asBackend) Host() host.Host { return host.Of(b.c.dev) }

// Start implements backend.Backend.
func (b asBackend) Start() (bool, error) {
	c := b.c
	if err := c.acquire(); err != nil {
		return false, errors.Join(err, c.release())
	}
	return true, nil
}

// acquire acquires from the device what copies need.
func (c *Context) acquire() error {
	depth := c.queueSize()
	c.makeSegments(depth)
	c.faults, c.failed = [2]*TaskError{}, false
	c.phase, c.ended, c.settled = phaseUp, false, false
	c.events.Clear()
	var err error
	if c.cq, err = c.dev.CreateCQ(verbs.CQInit{Capacity: 2 * depth, Poller: c.Engine()}); err != nil {
		return fmt.Errorf("create a completion queue of %d entries on %s: %w", 2*depth, c.dev.Name(), err)
	}
	c.cq.OnCompletion(c.control.Wake)
	c.lanes.Attach(c.cq, c.cq.Capacity(), c.received)
	init := verbs.QPInit{Type: verbs.RC, MaxRecvWR: depth, MaxSendSGE: c.set.MaxSGE, MaxRecvSGE: c.set.MaxSGE}
	if c.lane, err = c.lanes.Open(c.set.PD, init, depth, (*laneOwner)(c)); err != nil {
		return fmt.Errorf("create a queue pair for %d copies on %s: %w", depth, c.dev.Name(), err)
	}
	if err := c.connect(); err != nil {
		return fmt.Errorf("connect a queue pair of %s to itself: %w", c.dev.Name(), err)
	}
	c.unsubscribe = c.dev.SubscribeEvents(func(ev verbs.Event) {
		c.events.Add(ev)
		c.control.Wake()
	})
	return nil
}

// The attributes of the connection. Its ends are the same queue pair, so neither loss nor a
// receiver that is not ready is expected.
const (
	ackTimeout  = 14 // 67 ms
	retryCount  = 6
	rnrRetry    = 7  // 7 means for ever
	minRNRTimer = 12 // 640 µs
)

// connect connects the queue pair to itself.
func (c *Context) connect() error {
	s, psn := c.set, host.Uint32(host.Of(c.dev))&0xffffff
	if err := c.lane.Initialize(s.Port, s.PKeyIndex, 0); err != nil {
		return err
	}
	return c.lane.Connect(verbs.QPAttr{
		Address: verbs.AddressAttr{
			DGID: s.gid.GID, SGIDIndex: s.gid.Index, Port: s.Port, DLID: s.lid, UDPPort: s.gid.UDPPort,
		},
		PathMTU: s.mtu, DestQPN: c.lane.Num(), RQPSN: psn, SQPSN: psn,
		MaxDestReadAtomic: 1, MaxInitReadAtomic: 1, MinRNRTimer: minRNRTimer,
		Timeout: ackTimeout, RetryCount: retryCount, RNRRetry: rnrRetry,
	})
}

// release releases what acquire has acquired, even if acquire failed halfway.
func (c *Context) release() error {
	var errs []error
	if c.unsubscribe != nil {
		c.unsubscribe()
	}
	c.lanes.Release()
	if c.lane != nil {
		errs = append(errs, c.lane.Close())
	}
	if c.cq != nil {
		errs = append(errs, c.cq.Close())
	}
	c.unsubscribe, c.lane, c.cq = nil, nil, nil
	return errors.Join(errs...)
}

// Progress implements backend.Backend.
func (b asBackend) Progress() int {
	c := b.c
	c.inside = true
	defer c.leave()
	c.post()
	polled, err := c.lanes.Poll()
	if err != nil {
		c.breakDown(err)
	}
	if l := c.lanes.Drained(); l != nil {
		c.settle(l)
	}
	c.retire()
	c.checkFailure()
	finished := c.finish()
	c.post()
	n := max(polled, finished)
	if c.phase == phaseDraining {
		n += c.advance()
	}
	return n
}

func (c *Context) leave() { c.inside = false }

// Sleeper is where the engine can sleep: see lane.Group.Sleeper.
func (b asBackend) Sleeper() host.Sleeper { return b.c.lanes.Sleeper() }

// Arm implements backend.Backend.
func (b asBackend) Arm() bool {
	c := b.c
	if c.lanes.HasWork() || c.finished() != nil || c.postable() || c.events.Pending() ||
		c.settled {
		return false
	}
	if c.lanes.Broken() {
		return true
	}
	armed, err := c.cq.Arm(false)
	if err != nil {
		c.breakDown(err)
	}
	return armed
}

// Stop implements backend.Backend.
func (b asBackend) Stop() {
	c := b.c
	c.phase, c.ended = phaseDraining, true
	if err := c.lane.Shut(); err != nil {
		c.control.Log().Warn().Err(err).Msg("failed to move the queue pair to the error state")
	}
	c.poke()
}

// Idle implements backend.Backend.
func (b asBackend) Idle() {
	if err := b.c.release(); err != nil {
		b.c.control.Log().Warn().Err(err).Msg("failed to release the device's resources")
	}
}

// settle ends the lane's requests at the device, and destroys the queue pair, so that no
// memory is in use when the copies come back.
func (c *Context) settle(l *lane.Lane) {
	if c.first != c.next {
		c.control.Log().Warn().Uint64("segments", c.next-c.first).Msg("the device did not complete its requests in time; destroying the queue pair")
	}
	if err := l.Close(); err != nil {
		c.control.Log().Warn().Err(err).Msg("failed to close the queue pair")
	}
	if kept := l.Settle(); kept != nil {
		// This error does not match ErrMemoryKept, because not every copy has such memory.
		c.control.Fail(fmt.Errorf("dma: %w: context %q on %s: %v", ErrDevice, c.set.Name, c.dev.Name(), kept))
		for i := c.first; i != c.next; i++ {
			if p := c.at(i); !p.completed[sending] || !p.completed[receiving] {
				p.task.keep(kept)
			}
		}
	}
	l.Flush()
	c.abandonSegments()
	c.settled = true
}

// advance takes a context that is stopping its next steps to Idle.
func (c *Context) advance() int {
	if !c.settled {
		return 0
	}
	n := c.finish()
	if c.submitted.Len() == 0 {
		c.phase = phaseDown
		c.control.Stopped()
	}
	return n + 1
}

// checkFailure ends a run after a failure. Errors of tasks come first, since completions name
// the exact failure and events do not.
func (c *Context) checkFailure() {
	for _, f := range c.faults {
		if f != nil {
			c.end(f)
		}
	}
	if c.events.Pending() {
		c.handleEvents()
	}
	if c.failed {
		c.end(fmt.Errorf("dma: %w: the queue pair of context %q on %s is in the error state", ErrDevice, c.set.Name, c.dev.Name()))
	}
}

// handleEvents ends the run if the device reports a failure of its objects.
func (c *Context) handleEvents() {
	list, lost := c.events.Take()
	for _, ev := range list {
		if ev.Type == verbs.EventCQError && ev.CQ == c.cq {
			c.breakDown(fmt.Errorf("the device reports: %v", ev.Type)) // completions are lost
		}
	}
	if c.phase != phaseUp {
		return
	}
	for _, ev := range list {
		if ev.Type == verbs.EventDeviceFatal || ev.Type == verbs.EventQPFatal && ev.QPN == c.lane.Num() {
			c.end(fmt.Errorf("dma: %w: %s reports for context %q: %v", ErrDevice, c.dev.Name(), c.set.Name, ev.Type))
		}
	}
	if lost {
		if attr, err := c.lane.QP().Query(); err == nil && attr.State == verbs.QPError {
			c.failed = true
		}
	}
}

// end makes the context stop by itself.
func (c *Context) end(err error) {
	if c.ended {
		return
	}
	c.ended = true
	c.control.Log().Warn().Err(err).Msg("context failed")
	c.control.Fail(err)
}

// breakDown ends a context whose completion queue fails.
func (c *Context) breakDown(err error) {
	c.lanes.Break()
	c.lane.GiveUp()
	c.end(fmt.Errorf("dma: %w: completion queue of context %q on %s: %w", ErrDevice, c.set.Name, c.dev.Name(), err))
}
