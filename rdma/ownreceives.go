package rdma

import (
	"fmt"

	"github.com/verbena-rdma/verbena/internal/lane"
)

// With UC, and on a device without shared receive queues, each connection has its own receive
// queue, and the context distributes its receives among them.

// share is the most receives that a connection with its own receive queue gets: no
// other connection can use them.
func (r *receives) share() int { return r.depth / r.core.set.MaxConnections }

// ownQueueSize is the size of the receive queue that each connection has; zero: none has one.
func (r *receives) ownQueueSize() int {
	switch {
	case r.each != nil:
		return r.each.n
	case r.core.set.receivesShared || r.total == 0:
		return 0
	}
	return r.share()
}

// ownReceives is how many receives the connection's own queue holds.
func (conn *Connection) ownReceives() int {
	if conn.ctx.receives.each != nil {
		return conn.lane.Receives()
	}
	return conn.receives.Len()
}

// refill posts receives to a connection: those of its own, or its part
// of the waiting ones. The connection then goes to the back of the list, so that all
// connections get receives in turn.
func (r *receives) refill() {
	conn := r.toRefill.Pop().Value
	var err error
	if r.each != nil {
		err = conn.postOwn()
	} else {
		part := (r.waiting.Len() + r.toRefill.Len()) / (r.toRefill.Len() + 1) // rounded up
		_, err = r.postSome(conn.lane.QP(), min(part, r.share()-conn.receives.Len()), conn)
	}
	if err != nil {
		conn.takesReceives = false
		conn.fail(fmt.Errorf("%w: post receives: %w", ErrDevice, err))
		conn.do(conn.life.Break(conn.ctx.host.Now()))
		return
	}
	conn.queueRefill()
}

// queueRefill lists the connection to be given receives, if it has room for them.
func (conn *Connection) queueRefill() {
	r := &conn.ctx.receives
	if conn.takesReceives && !conn.transition.running && !conn.toRefill.Queued() && conn.ownReceives() < r.ownQueueSize() {
		r.toRefill.Push(&conn.toRefill)
	}
}

// takeReceives lets a connection with its own receive queue take receives. Its queue pair must
// accept receives, and not be able to receive messages yet.
func (conn *Connection) takeReceives() {
	c := conn.ctx
	if c.receives.ownQueueSize() == 0 || c.phase != phaseUp {
		return
	}
	conn.takesReceives = true
	conn.queueRefill()
	c.receives.post()
}

// refuseReceives undoes takeReceives.
func (conn *Connection) refuseReceives() {
	conn.takesReceives = false
	conn.ctx.receives.toRefill.Remove(&conn.toRefill)
}

// returnReceives gives the receives of a queue pair that was reset or destroyed to other
// connections, unless they belong to this one. Their later completions are ignored.
func (conn *Connection) returnReceives() {
	conn.refuseReceives()
	all := &conn.ctx.receives
	if all.each != nil {
		conn.renewReceiveID()
		return
	}
	for e := conn.receives.Front(); e != nil; e = conn.receives.Front() {
		r := e.Value
		all.returned(r)
		generation := (r.wr.ID/receiveGeneration + 1) & receiveGenerationMask
		r.wr.ID = lane.ReceiveID | generation*receiveGeneration | uint64(r.index)
		all.waiting.Push(&r.place)
	}
	conn.ctx.wake()
}
