package rdma

import (
	"fmt"

	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/verbs"
)

// queueEvent queues an event, on the device's goroutine.
func (c *base) queueEvent(ev verbs.Event) {
	c.events.Add(ev)
	c.wake()
}

// deferredEvent is an event that waits until all earlier completions have been handled.
// Completions name the exact failure, and an event that ends a connection would flush tasks
// whose completions have not been polled yet.
type deferredEvent struct {
	after        uint64 // the event is due when so many completions have been handled, or none is left
	event        verbs.Event
	lost         bool        // events were dropped
	disconnected *Connection // not nil: its peer has disconnected
}

// deferEvent queues an event: at most as many completions come before it as the completion queue
// holds.
func (c *base) deferEvent(h deferredEvent) {
	h.after = c.lanes.Handled() + uint64(c.cq.Capacity()) + lane.PollBatch
	c.deferred.Push(h)
}

// takeEvents takes over the events so far from the device's goroutine.
func (c *base) takeEvents() {
	if !c.events.Pending() {
		return
	}
	list, lost := c.events.Take()
	for _, ev := range list {
		c.service.eventQueued(&ev)
		c.deferEvent(deferredEvent{event: ev})
	}
	if lost {
		c.deferEvent(deferredEvent{lost: true})
	}
}

// handleEvents handles the events that are due, and returns how many concerned the context.
func (c *base) handleEvents() int {
	n := 0
	for c.deferred.Len() > 0 && (c.lanes.Empty() || c.lanes.Handled() >= c.deferred.Front().after) {
		n += c.handleDeferred(c.deferred.Pop())
	}
	return n
}

func (c *base) handleDeferred(h deferredEvent) int {
	switch {
	case h.lost:
		return c.service.eventsLost() + c.portChanged(verbs.Event{})
	case h.disconnected != nil:
		h.disconnected.peerClosed()
		return 1
	default:
		return c.handleEvent(h.event)
	}
}

// handleEventsOf handles the events so far that concern one connection, or all of them.
func (c *base) handleEventsOf(conn *Connection) {
	c.takeEvents()
	for range c.deferred.Len() {
		h := c.deferred.Pop()
		if !h.lost && h.disconnected == nil && (h.event.QPN == 0 || h.event.QPN == conn.lane.Num()) {
			c.handleEvent(h.event)
		} else {
			c.deferred.Push(h)
		}
	}
}

func (c *base) handleEvent(ev verbs.Event) int {
	switch ev.Type {
	case verbs.EventQPFatal, verbs.EventQPRequestError, verbs.EventQPAccessError, verbs.EventQPLastWQEReached, verbs.EventCommEstablished, verbs.EventPeerGone:
		return c.service.event(&ev)
	case verbs.EventCQError:
		if ev.CQ != c.cq {
			return 0
		}
		c.breakDown(fmt.Errorf("the device reports: %v", ev.Type)) // completions are lost
		return 1
	case verbs.EventSRQError:
		if c.srq == nil || ev.SRQ != c.srq {
			return 0
		}
	case verbs.EventPortActive, verbs.EventPortError, verbs.EventGIDChange, verbs.EventLIDChange, verbs.EventPKeyChange:
		return c.portChanged(ev)
	case verbs.EventDeviceFatal:
	default:
		return 0
	}
	c.failWith(fmt.Errorf("%w: %s reports for context %q: %v", ErrDevice, c.dev.Name(), c.set.Name, ev.Type))
	return 1
}

// portChanged handles an event of a port. Connections go on, since the port or the address may
// come back. Their later errors name the port (pathProblem).
func (c *base) portChanged(ev verbs.Event) int {
	if ev.Port != 0 && ev.Port != c.set.Port {
		return 0
	}
	if err := c.refreshPort(); err != nil {
		c.set.Log.Warn().Err(err).Str("context", c.set.Name).Stringer("event", ev.Type).Msg("failed to query the port after an event")
	}
	return 1
}

// failWith ends the context and its connections, all for one reason.
func (c *base) failWith(err error) {
	c.service.fail(err)
	c.control.Fail(fmt.Errorf("rdma: %w", err))
}

// hasEvents reports whether events wait.
func (c *base) hasEvents() bool { return c.events.Pending() || c.deferred.Len() > 0 }
