package rdma

import (
	"fmt"

	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/verbs"
)

// event queues an event, on the device's goroutine.
func (c *Context) event(ev verbs.Event) {
	c.events.Add(ev)
	c.control.Wake()
}

// takeEvents takes the events so far from the device's goroutine. What completed before
// an event is handled before it, since a completion says more than an event of what was
// wrong.
func (c *Context) takeEvents() {
	if !c.events.Pending() {
		return
	}
	c.holdEvents()
	list, lost := c.events.Take()
	for _, ev := range list {
		c.taken.Push(ev)
	}
	c.eventsLost = c.eventsLost || lost
}

// holdEvents is called before an event is added to those that wait until what completed
// before has been handled: there are at most as many completions as the queue holds.
func (c *Context) holdEvents() {
	if !c.eventsWait() {
		c.eventsAfter = c.lanes.Handled() + uint64(c.cq.Capacity()) + lane.PollBatch
	}
}

// peerLeft has the connection closed, since its peer has said goodbye, after what the peer
// acknowledged before has completed: the end of the connection would flush it.
func (c *Context) peerLeft(conn *Connection) {
	c.holdEvents()
	c.left.Push(conn)
}

// eventsWait reports whether there are events that are to be handled.
func (c *Context) eventsWait() bool { return c.taken.Len() > 0 || c.eventsLost || c.left.Len() > 0 }

// handleEvents handles the events that were taken, if it is time, and returns how many
// concerned the context.
func (c *Context) handleEvents() int {
	if !c.eventsWait() || !c.lanes.Empty() && c.lanes.Handled() < c.eventsAfter {
		return 0
	}
	n := c.left.Len()
	for c.left.Len() > 0 {
		c.left.Pop().peerClosed()
	}
	for c.taken.Len() > 0 {
		n += c.handleEvent(c.taken.Pop())
	}
	if c.eventsLost {
		c.eventsLost = false
		n += c.queryAll()
	}
	return n
}

// handleEventsOf handles the events so far of one connection, and those of all.
func (c *Context) handleEventsOf(conn *Connection) {
	c.takeEvents()
	for range c.taken.Len() {
		if ev := c.taken.Pop(); ev.QPN == 0 || ev.QPN == conn.lane.Num() {
			c.handleEvent(ev)
		} else {
			c.taken.Push(ev)
		}
	}
}

func (c *Context) handleEvent(ev verbs.Event) int {
	switch ev.Type {
	case verbs.EventQPFatal, verbs.EventQPRequestError, verbs.EventQPAccessError, verbs.EventQPLastWQEReached, verbs.EventCommEstablished, verbs.EventPeerGone:
		conn := c.byQPN[ev.QPN]
		if conn == nil {
			return c.handleEndpointEvent(&ev)
		}
		switch ev.Type {
		case verbs.EventQPLastWQEReached:
			conn.lastReceive = true
		case verbs.EventCommEstablished:
			if conn.state == Connecting {
				conn.establishment.received()
			}
		case verbs.EventPeerGone:
			conn.fail(fmt.Errorf("rdma: %v: %w: its process is dead", conn, ErrRetryExceeded))
		case verbs.EventQPFatal:
			conn.fail(fmt.Errorf("rdma: %v: %w: %v", conn, ErrDevice, ev.Type))
		case verbs.EventQPRequestError:
			conn.fail(fmt.Errorf("rdma: %v: %w as invalid: a read or an atomic needs mmap.RemoteRead or RemoteAtomic in Config.Permissions, and there is %v; a message must not be longer than the receive%s",
				conn, ErrPeerRefused, c.set.Permissions, conn.onMismatch(verbs.StatusRemoteInvalidRequest)))
		case verbs.EventQPAccessError:
			conn.fail(fmt.Errorf("rdma: %v: %w for its key, bounds or permission; check the memory descriptor that the peer has",
				conn, ErrPeerRefused))
		}
		return 1
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
	case verbs.EventDeviceFatal:
	default:
		return 0
	}
	c.failWith(fmt.Errorf("rdma: %w: %s reports for context %q: %v", ErrDevice, c.dev.Name(), c.set.Name, ev.Type))
	return 1
}

// handleEndpointEvent handles what concerns the queue pair of the endpoint, if it does.
func (c *Context) handleEndpointEvent(ev *verbs.Event) int {
	if c.datagrams == nil || c.datagrams.lane.Num() != ev.QPN || ev.Type != verbs.EventQPFatal {
		return 0
	}
	c.failWith(fmt.Errorf("rdma: %w: the queue pair of context %q: %v", ErrDevice, c.set.Name, ev.Type))
	return 1
}

// failWith ends the context and its connections, all for one reason.
func (c *Context) failWith(err error) {
	for _, conn := range c.slots {
		if conn != nil {
			conn.fail(err)
		}
	}
	c.control.Fail(err)
}

// queryAll finds the queue pairs that are in error, where events were lost.
func (c *Context) queryAll() int {
	n := 0
	for _, conn := range c.slots {
		if conn == nil || conn.state != Ready && conn.state != Connecting {
			continue
		}
		if attr, err := conn.lane.QP().Query(); err == nil && attr.State == verbs.QPError {
			conn.fail(fmt.Errorf("rdma: %v: %w: its queue pair is in error", conn, ErrDevice))
			n++
		}
	}
	return n
}
