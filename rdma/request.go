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
	conn    *Connection
	send    lane.Request
	op      Operation
	local   *bufinv.Buf
	remote  *bufinv.Buf
	length  int // bytes that this submission moves
	event   *syncevent.Event
	word    int         // in the scratch memory, for what an atomic or sync event moves
	result  uint64      // of an atomic, or of a get
	sgl     []verbs.SGE // as long as a list may be
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
		r.sgl = make([]verbs.SGE, 1)
	} else {
		r.sgl = make([]verbs.SGE, 0, c.set.MaxSendSGE)
	}
	c.lanes.Add(&r.send, (*completer)(r))
	c.requests++
}

func (r *request) base() *request { return r }

// completer is what a request is for its lane.
type completer request

// Completed implements lane.Completer.
func (c *completer) Completed(status verbs.Status, vendor uint32) {
	r := (*request)(c)
	if status == verbs.StatusSuccess {
		r.conn.peerAlive = true
		r.succeed()
		return
	}
	err := &TaskError{Op: r.op, Status: status, Connection: r.conn, VendorError: vendor}
	r.conn.failedTask(status, err)
	r.control.End(&r.Task)
	r.pool.completed(r, err)
}

// Submit gives the task to the device, together with tasks that pe.Aggregate has made
// wait before it. From here to its callback, the task, its buffers and their memory
// must not be touched. It allocates nothing.
//
// It checks what nobody else would notice: the buffers, and that what is moved fits.
// What the device or the peer refuses fails the task later, and ends the connection;
// TrySubmit finds most of that before. If Submit fails, the task remains the caller's.
// Errors match pe.ErrBadState, pe.ErrInUse and pe.ErrFreed, ErrNotReady unless the
// connection is Ready, ErrNotSupported, and those of Alloc for the buffers.
func (r *request) Submit() error { return r.submit(0, false) }

// SubmitWith is Submit with flags: see pe.Aggregate and pe.OptimizeReports.
func (r *request) SubmitWith(flags pe.SubmitFlags) error { return r.submit(flags, false) }

// TrySubmit is Submit after a check of everything that can be known here: also
// the permissions and bounds that the peer's descriptor gave, alignment, and the
// limits of the device.
func (r *request) TrySubmit() error { return r.submit(0, true) }

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

// Connection is the connection that the task runs on, or nil.
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
	r.conn = conn
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

// give sets what a task that was just allocated works on.
func (r *request) give(conn *Connection, local, remote *bufinv.Buf) error {
	r.length, r.result = 0, 0
	if err := r.ctx.owns(conn); err != nil {
		return err
	}
	r.conn, r.local, r.remote = conn, local, remote
	err := r.measure()
	if err == nil {
		err = r.checkLimits()
	}
	if err != nil {
		r.conn, r.local, r.remote = nil, nil, nil
	}
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

// drop releases what a task that was freed has worked on.
func (r *request) drop() error {
	local, remote, event := r.local, r.remote, r.event
	r.conn, r.local, r.remote, r.event = nil, nil, nil, nil
	if event != nil {
		return event.Release()
	}
	err := local.Free()
	if e := remote.Free(); err == nil {
		err = e
	}
	return err
}

func (r *request) submit(flags pe.SubmitFlags, thorough bool) error {
	if err := r.control.Begin(&r.Task, operations[r.op].submit); err != nil {
		return err
	}
	if err := r.prepare(thorough); err != nil {
		r.control.Abort(&r.Task)
		return fmt.Errorf("rdma: %s: %w", operations[r.op].submit, err)
	}
	r.send.Unreported = flags&pe.OptimizeReports != 0
	r.conn.lane.Push(&r.send)
	if flags&pe.Aggregate == 0 {
		r.ctx.flush()
	} else {
		r.ctx.poke()
	}
	return nil
}

// prepare builds the work request.
func (r *request) prepare(thorough bool) error {
	if r.conn == nil || r.conn.state != Ready {
		return r.notReady()
	}
	if err := r.measure(); err != nil {
		return err
	}
	if thorough {
		if err := r.checkLimits(); err != nil {
			return err
		}
	}
	if r.op.returnsData() && r.conn.maxReads == 0 {
		return fmt.Errorf("%w: one end of %v takes no reads and atomics", ErrNotSupported, r.conn)
	}
	wr := &r.send.WR
	var err error
	if wr.SGL, err = r.gather(); err != nil {
		return err
	}
	wr.Flags = 0
	if r.fitsInline() {
		wr.Flags = verbs.FlagInline
	}
	wr.RKey, wr.RemoteAddr = 0, 0
	switch {
	case r.event != nil:
		r.prepareEvent()
	case r.remote != nil:
		wr.RKey = r.remote.Map().RKey()
		wr.RemoteAddr = r.remote.TailAddr()
		if r.op == OpRead {
			wr.RemoteAddr = r.remote.DataAddr()
		}
	}
	return nil
}

// fitsInline reports whether the data can be posted inline. The processor copies them
// then, which it cannot from a dma-buf.
func (r *request) fitsInline() bool {
	if r.op.returnsData() || r.length == 0 || r.length > r.ctx.set.inline {
		return false
	}
	for b := r.local; b != nil; b = b.Next() {
		if b.Memory() == nil {
			return false
		}
	}
	return true
}

func (r *request) notReady() error {
	switch {
	case r.conn == nil:
		return fmt.Errorf("%w: the task has no connection", ErrInvalid)
	case r.conn.err != nil:
		return fmt.Errorf("%w: %v is %v: %w", ErrNotReady, r.conn, r.conn.state, r.conn.err)
	}
	return fmt.Errorf("%w: %v is %v; tasks run on it only when it is Ready", ErrNotReady, r.conn, r.conn.state)
}

// succeed ends a task that the device has carried out.
func (r *request) succeed() {
	r.control.End(&r.Task)
	switch {
	case r.op == OpRead && r.local != nil:
		// It fails only if the program has changed the buffers meanwhile.
		if err := r.local.Produced(r.length); err != nil {
			r.pool.completed(r, fmt.Errorf("rdma: %v: its destination was changed in flight: %w", r.op, err))
			return
		}
	case r.op == OpSyncEventGet:
		r.takeValue()
	case r.op.atomic():
		if err := r.takeOriginal(); err != nil {
			r.pool.completed(r, fmt.Errorf("rdma: %v: its result buffer was changed in flight: %w", r.op, err))
			return
		}
	}
	r.pool.completed(r, nil)
}
