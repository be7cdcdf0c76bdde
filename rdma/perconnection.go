package rdma

import (
	"fmt"

	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/verbs"
)

// perConnection is what the connections of a context have in common whose receives are not
// shared.
type perConnection struct {
	messageFunction
	n      int // receives of each connection
	size   int // of a buffer; zero: none have one
	stride int
	uses   uint64 // of queue pairs, by connections, so far
	sges   [lane.PostBatch]verbs.SGE
}

// connectionReceives are the receives of one connection. All of them are alike but for their
// buffers. A queue pair completes receives in the order in which they were posted, so counts
// are enough to know which buffer a completion is about.
type connectionReceives struct {
	id     uint64 // of all of them; a later queue pair of the connection has another
	posted int    // the buffer of the next to be posted
	done   int    // the buffer of the next to complete
	mem    *mmap.Map
	key    uint32
}

// The ID of the receives of a connection is lane.ReceiveID, the connection's slot, and a number
// that tells them from those of every other queue pair that the slot has had.
const (
	slotBits = 16
	slotMask = 1<<slotBits - 1
	useMask  = 1<<(63-slotBits) - 1
)

// ReceivePerConnection is Receive, with n receives, and n buffers of size bytes, that belong to
// each connection alone. So a peer that sends faster than f returns waits for its own receives,
// and takes none from others. They are posted before the peer can send. A connection that is
// made allocates its buffers, if size is not zero; they are freed before OnConnection reports
// Closed. While no buffers are needed, receives cost nothing but their entries in the queues of
// the device.
//
// The context has no other receives then: it is an error to call Receive or ReceivePool too.
// Config.Queues.RecvQueueSize is not used. n is 1 to the number that a queue pair of the device holds.
// Start fails with ErrRange if a completion queue of the device cannot hold n completions of
// each of Config.MaxConnections connections, and some of tasks.
//
// Everything else is as for Receive: f, the messages, when they are legal, and the errors.
func (c *Connections) ReceivePerConnection(n, size int, f func(*Message)) error {
	const op = "receive messages per connection"
	stride, err := c.checkReceive(op, n, size, c.set.caps.MaxSends, f)
	if err != nil {
		return err
	}
	if c.receives.total > 0 {
		return fmt.Errorf("rdma: %s of context %q: %w: the context has a pool of receives, which its connections share; use one of the two", op, c.set.Name, ErrInvalid)
	}
	c.receives.each = &perConnection{messageFunction: messageFunction{handle: f}, n: n, size: size, stride: stride}
	c.set.receivesShared = false
	return nil
}

// openReceives makes the buffers of the connection.
func (conn *Connection) openReceives() error {
	c, p := conn.ctx, conn.ctx.receives.each
	if p == nil {
		return nil
	}
	conn.renewReceiveID()
	if p.size == 0 {
		return nil
	}
	m, err := mmap.New(c.dev, mmap.Config{Size: p.n * p.stride, Permissions: mmap.LocalReadWrite, PD: c.set.PD})
	if err != nil {
		return fmt.Errorf("make %d buffers of %d bytes for messages: %w", p.n, p.size, err)
	}
	conn.own.mem = m
	conn.own.key, err = m.LKey(c.set.PD)
	return err
}

// closeReceives frees the buffers. The queue pair is destroyed.
func (conn *Connection) closeReceives() error {
	m := conn.own.mem
	conn.own.mem = nil
	return conn.ctx.closeMemory(m)
}

// renewReceiveID makes completions of the receives posted so far be ignored.
func (conn *Connection) renewReceiveID() {
	p := conn.ctx.receives.each
	p.uses++
	conn.own.posted, conn.own.done = 0, 0
	conn.own.id = lane.ReceiveID | p.uses&useMask<<slotBits | uint64(conn.slot)
}

// postOwn posts the receives of its own that the connection lacks.
func (conn *Connection) postOwn() error {
	r, own := &conn.ctx.receives, &conn.own
	p := r.each
	for missing := p.n - conn.lane.Receives(); missing > 0; missing = p.n - conn.lane.Receives() {
		n := min(missing, lane.PostBatch)
		for i := range n {
			wr := &r.wrs[i]
			*wr = verbs.RecvWR{ID: own.id}
			if p.size > 0 {
				at := (own.posted + i) % p.n * p.stride
				p.sges[i] = verbs.SGE{Addr: own.mem.Addr() + uint64(at), Length: uint32(p.size), LKey: own.key}
				wr.SGL = p.sges[i : i+1]
			}
		}
		taken, err := conn.lane.PostRecv(r.wrs[:n])
		own.posted = (own.posted + taken) % p.n
		if err != nil {
			return err
		}
	}
	return nil
}

// receivedOwn handles the completion of a receive that belongs to one connection.
func (c *Connections) receivedOwn(wc *verbs.WC) {
	slot := int(wc.ID & slotMask)
	if slot >= len(c.slots) || c.slots[slot] == nil || c.slots[slot].own.id != wc.ID {
		return // of a queue pair that no longer exists
	}
	conn, p := c.slots[slot], c.receives.each
	at := conn.own.done * p.stride
	conn.own.done = (conn.own.done + 1) % p.n
	conn.lane.Received()
	if wc.Status != verbs.StatusSuccess {
		conn.refuseReceives() // the queue pair is in error
		if wc.Status == verbs.StatusFlushed {
			conn.failedTask(wc.Status, nil)
			return
		}
		err := &TaskError{Op: OpReceive, Status: wc.Status, Connection: conn, VendorError: wc.VendorError}
		if wc.Status == verbs.StatusLocalLengthError {
			err.advice = fmt.Sprintf("the buffers of ReceivePerConnection hold %d bytes; call it with the size of the largest message", p.size)
		}
		conn.failedTask(wc.Status, err)
		return
	}
	if !c.messageFrom(conn) {
		return
	}
	a := c.arrivalFrom(conn, wc)
	if a.opcode == ReceivedWriteImm || a.length == 0 {
		conn.queueRefill() // now, so that the receive is posted before an answer goes to the peer
		c.postLater()
		p.deliver(a, nil)
		return
	}
	defer conn.queueRefillLater() // even after a panic
	end := at + a.length
	p.deliver(a, conn.own.mem.Bytes()[at:end:end])
}

// queueRefillLater is queueRefill, after the function has had the message.
func (conn *Connection) queueRefillLater() {
	conn.queueRefill()
	conn.ctx.postLater()
}
