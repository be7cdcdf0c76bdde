package rdma

import (
	"fmt"

	"github.com/verbena-rdma/verbena/verbs/lane"
)

// With UC, and where the device has no shared receive queues, each connection has a receive queue of its
// own, and the receives of the context are dealt out to them.

// receiveShare is how many receives a connection has at most, where each has a queue of its
// own: what a connection has got, an other one cannot use.
func (c *Connections) receiveShare() int { return c.recvDepth / c.set.MaxConnections }

// needsReceives implements service.
func (c *Connections) needsReceives() bool { return c.hungry.Len() > 0 }

// feed implements service: it posts receives to a connection. The connection gets its part of
// those that wait, and then stands behind the others, so that all get receives in turn.
func (c *Connections) feed() {
	conn := c.hungry.Pop().Value
	part := (c.recvWaiting.Len() + c.hungry.Len()) / (c.hungry.Len() + 1) // rounded up
	_, err := c.postSomeReceives(conn.lane.QP(), min(part, c.receiveShare()-conn.receives.Len()), conn)
	if err != nil {
		conn.takesReceives = false
		conn.fail(fmt.Errorf("%w: posting receives: %w", ErrDevice, err))
		conn.shut() // also if it is closing
		return
	}
	conn.becomeHungry()
}

// becomeHungry has the connection be given receives, if it has room for them.
func (conn *Connection) becomeHungry() {
	c := conn.ctx
	if conn.takesReceives && !conn.transition.running && !conn.hungry.Queued() && conn.receives.Len() < c.receiveShare() {
		c.hungry.Push(&conn.hungry)
	}
}

// takeReceives has a connection with a receive queue of its own be given receives. Its queue
// pair must be able to take them, and not yet able to receive.
func (conn *Connection) takeReceives() {
	c := conn.ctx
	if c.set.receivesShared || len(c.receives) == 0 || c.phase != phaseUp {
		return
	}
	conn.takesReceives = true
	conn.becomeHungry()
	c.postReceives()
}

// refuseReceives ends that.
func (conn *Connection) refuseReceives() {
	conn.takesReceives = false
	conn.ctx.hungry.Remove(&conn.hungry)
}

// returnReceives gives the receives of a queue pair that was reset or destroyed to other
// connections. What the device still says of them is ignored.
func (conn *Connection) returnReceives() {
	conn.refuseReceives()
	c := conn.ctx
	for e := conn.receives.Front(); e != nil; e = conn.receives.Front() {
		r := e.Value
		c.takenBack(r)
		generation := (r.wr.ID/receiveGeneration + 1) & receiveGenerationMask
		r.wr.ID = lane.ReceiveID | generation*receiveGeneration | uint64(r.index)
		c.recvWaiting.Push(&r.place)
	}
	c.poke()
}
