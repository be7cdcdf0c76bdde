package rdma

import (
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/syncevent"
	"github.com/verbena-rdma/verbena/verbs"
)

// request is what all tasks have in common that go to the send queue of a
// connection.
type request struct {
	pe.Task
	control *pe.Control // nil for a task that came from no pool
	ctx     *Context
	pool    requestOwner
	self    interface{ base() *request } // the task that embeds it
	conn    *Connection                  // that it runs on; nil: on the endpoint
	peer    *Peer                        // that it goes to from the endpoint
	handle  *addressHandle               // that leads there, in flight
	send    lane.Request
	op      Operation
	local   *bufinv.Buf
	remote  *bufinv.Buf
	appends bool // to the data of local, where the operation returns data
	length  int  // bytes that this submission moves
	event   *syncevent.Event
	word    int         // in the scratch memory, for what an atomic or sync event moves
	result  uint64      // of an atomic, or of a get
	sgl     []verbs.SGE // its capacity is as long as a list may be
}

// requestOwner is the pool of a request, whatever the kind of its tasks.
type requestOwner interface {
	// free puts the task back.
	free(r *request) error
	// completed runs the callback of the task, which is no longer in flight.
	completed(r *request, err error)
}

// register makes a request known to its context. It is called once, when the pool
// is made.
func (r *request) register(c *Context, op Operation, pool requestOwner, self interface{ base() *request }) {
	r.control, r.ctx, r.op, r.pool, r.self = c.control, c, op, pool, self
	r.send.WR.Op = operations[op].verb
	if op.onWord() {
		r.word = c.words
		c.words++
		r.sgl = make([]verbs.SGE, 0, 1)
	} else {
		r.sgl = make([]verbs.SGE, 0, c.set.MaxSendSGE)
	}
	c.lanes.Add(&r.send, (*completer)(r))
	c.requests++
}

// registerShared is register for a task of the shared pool, which may do any operation.
// The context has kept room for it.
func (r *request) registerShared(c *Context, word int, pool requestOwner, self interface{ base() *request }) {
	r.control, r.ctx, r.pool, r.self, r.word = c.control, c, pool, self, word
	r.sgl = make([]verbs.SGE, 0, max(c.set.MaxSendSGE, 1))
	c.lanes.Add(&r.send, (*completer)(r))
}

func (r *request) base() *request { return r }

// Free puts the task back into its pool and drops its references to its buffers, or
// to its sync event. It is legal whenever the task is not in flight. Errors are those
// of pe.Pool.Free and bufinv.
func (r *request) Free() error {
	if r.self == nil || r.self.base() != r {
		return r.control.Begin(&r.Task, "free") // which fails: it came from no pool, or is a copy
	}
	if err := r.pool.free(r); err != nil {
		return err
	}
	return r.drop()
}

// Operation is the task's kind.
func (r *request) Operation() Operation { return r.op }

// Connection is the connection that the task runs on, or nil where it goes to a Peer.
func (r *request) Connection() *Connection { return r.conn }

// SetConnection moves the task to another connection of the same context, for its
// next submission. Errors match pe.ErrInUse in flight, and ErrInvalid.
func (r *request) SetConnection(conn *Connection) error {
	if err := r.control.MayChange(&r.Task, "connection"); err != nil {
		return err
	}
	if err := r.ctx.owns(conn); err != nil {
		return fmt.Errorf("rdma: set the connection of a %v: %w", r.op, err)
	}
	r.conn, r.peer = conn, nil
	return nil
}

// Peer is the endpoint that the task goes to, or nil where it runs on a Connection.
func (r *request) Peer() *Peer { return r.peer }

// SetPeer has the next submissions of the task go to another endpoint. Errors match
// pe.ErrInUse in flight, and ErrInvalid.
func (r *request) SetPeer(p *Peer) error {
	if err := r.control.MayChange(&r.Task, "peer"); err != nil {
		return err
	}
	if err := r.ctx.ownsPeer(p); err != nil {
		return fmt.Errorf("rdma: set the peer of a %v: %w", r.op, err)
	}
	r.conn, r.peer = nil, p
	return nil
}

// Length is the number of bytes that the last submission moves, or has moved.
func (r *request) Length() int { return r.length }

func (c *Context) owns(conn *Connection) error {
	switch {
	case conn == nil:
		return fmt.Errorf("%w: no connection is given", ErrInvalid)
	case conn.ctx != c:
		return fmt.Errorf("%w: %v is not of context %q", ErrInvalid, conn, c.set.Name)
	}
	return nil
}

// address sets whom a task that was just allocated goes to.
func (r *request) address(to Responder) error {
	switch to := to.(type) {
	case *Connection:
		r.conn, r.peer = to, nil
		return r.ctx.owns(to)
	case *Peer:
		r.conn, r.peer = nil, to
		return r.ctx.ownsPeer(to)
	}
	return fmt.Errorf("%w: no connection or peer is given", ErrInvalid)
}

// give sets what a task that was just allocated works on.
func (r *request) give(to Responder, local, remote *bufinv.Buf) error {
	r.length, r.result, r.appends = 0, 0, false
	if err := r.address(to); err != nil {
		r.conn, r.peer = nil, nil
		return err
	}
	r.local, r.remote = local, remote
	err := r.measure()
	if err == nil {
		err = r.checkLimits()
	}
	if err == nil {
		return nil
	}
	if r.conn != nil && (r.conn.state == Failed || r.conn.state == Closed) {
		err = r.notReady() // which is why the peer's memory is no longer there
	}
	r.conn, r.peer, r.local, r.remote = nil, nil, nil, nil
	return err
}

// swap exchanges a buffer, and drops the reference to the old one. It takes over
// the new one in any case.
func (r *request) swap(what string, slot **bufinv.Buf, b *bufinv.Buf) error {
	err := r.control.MayChange(&r.Task, what)
	if err == nil {
		if err = b.Err(); err != nil {
			err = fmt.Errorf("rdma: set the %s of a %v: %w", what, r.op, err)
		}
	}
	if err != nil {
		_ = b.Free() // the error at hand says more
		return err
	}
	old := *slot
	*slot = b
	if old != b {
		return old.Free()
	}
	return nil
}

func (r *request) setOperand(v uint64) error {
	if err := r.control.MayChange(&r.Task, "value"); err != nil {
		return err
	}
	r.send.WR.CompareAdd = v
	return nil
}

// setAppend is SetAppend of the tasks that bring data.
func (r *request) setAppend(on bool) error {
	if err := r.control.MayChange(&r.Task, "place in the destination"); err != nil {
		return err
	}
	r.appends = on
	return nil
}

// room is how much data the task can bring.
func (r *request) room() int {
	if r.appends {
		return r.local.ListRoom()
	}
	return r.local.ListEmptiedRoom()
}

// drop releases what a task that was freed has worked on.
func (r *request) drop() error {
	local, remote, event := r.local, r.remote, r.event
	r.conn, r.peer, r.local, r.remote, r.event, r.appends = nil, nil, nil, nil, nil, false
	if event != nil {
		return event.Release()
	}
	err := local.Free()
	if e := remote.Free(); err == nil {
		err = e
	}
	return err
}

// atomicSize is the width of an atomic, in bytes, and its alignment.
const atomicSize = 8

func (r *request) wordOffset() uint64 { return 8 * uint64(r.ctx.set.MaxConnections+r.word) }

// wordBytes is the task's word of the scratch memory.
func (r *request) wordBytes() []byte {
	off := r.wordOffset()
	return r.ctx.scratch.Bytes()[off : off+atomicSize]
}
