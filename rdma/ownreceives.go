package rdma

import (
	"fmt"

	"github.com/verbena-rdma/verbena/internal/lane"
)

// With UC, and on a device without shared receive queues, each connection has its own receive
// queue, and the context distributes its receives among them.

// receiveShare is the most receives that a connection with its own receive queue gets: no
// other connection can use them.
func (c *Connections) receiveShare() int { return c.recvDepth / c.set.MaxConnections }

// ownQueueSize is the size of the receive queue that each connection has; zero: none has one.
func (c *Connections) ownQueueSize() int {
	switch {
	case c.each != nil:
		return c.each.n
	case c.set.receivesShared || c.receiveTotal == 0:
		return 0
	}
	return c.receiveShare()
}

// ownReceives is how many receives the connection's own queue holds.
func (conn *Connection) ownReceives() int {
	if conn.ctx.each != nil {
		return conn.lane.Receives()
	}
	return conn.receives.Len()
}

// needsReceives implements service.
func (c *Connections) needsReceives() bool {
	return c.toRefill.Len() > 0 && (c.each != nil || c.recvWaiting.Len() > 0 && c.recvPosted < c.recvDepth)
}

// refill implements service: it posts receives to a connection: those of its own, or its part
// of the waiting ones. The connection then goes to the back of the list, so that all
// connections get receives in turn.
func (c *Connections) refill() {
	conn := c.toRefill.Pop().Value
	var err error
	if c.each != nil {
		err = conn.postOwn()
	} else {
		part := (c.recvWaiting.Len() + c.toRefill.Len()) / (c.toRefill.Len() + 1) // rounded up
		_, err = c.postSomeReceives(conn.lane.QP(), min(part, c.receiveShare()-conn.receives.Len()), conn)
	}
	if err != nil {
		conn.takesReceives = false
		conn.fail(fmt.Errorf("%w: post receives: %w", ErrDevice, err))
		conn.shut() // even if it is closing
		return
	}
	conn.queueRefill()
}

// queueRefill lists the connection to be given receives, if it has room for them.
func (conn *Connection) queueRefill() {
	c := conn.ctx
	if conn.takesReceives && !conn.transition.running && !conn.toRefill.Queued() && conn.ownReceives() < c.ownQueueSize() {
		c.toRefill.Push(&conn.toRefill)
	}
}

// takeReceives lets a connection with its own receive queue take receives. Its queue pair must
// accept receives, and not be able to receive messages yet.
func (conn *Connection) takeReceives() {
	c := conn.ctx
	if c.ownQueueSize() == 0 || c.phase != phaseUp {
		return
	}
	conn.takesReceives = true
	conn.queueRefill()
	c.postReceives()
}

// refuseReceives undoes takeReceives.
func (conn *Connection) refuseReceives() {
	conn.takesReceives = false
	conn.ctx.toRefill.Remove(&conn.toRefill)
}

// returnReceives gives the receives of a queue pair that was reset or destroyed to other
// connections, unless they belong to this one. Their later completions are ignored.
func (conn *Connection) returnReceives() {
	conn.refuseReceives()
	c := conn.ctx
	if c.each != nil {
		conn.renewReceiveID()
		return
	}
	for e := conn.receives.Front(); e != nil; e = conn.receives.Front() {
		r := e.Value
		c.receiveReturned(r)
		generation := (r.wr.ID/receiveGeneration + 1) & receiveGenerationMask
		r.wr.ID = lane.ReceiveID | generation*receiveGeneration | uint64(r.index)
		c.recvWaiting.Push(&r.place)
	}
	c.poke()
}
