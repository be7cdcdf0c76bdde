package rdma

import (
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/internal/profiling"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/pe/backend"
	"github.com/verbena-rdma/verbena/rdma/internal/receiving"
	"github.com/verbena-rdma/verbena/verbs"
)

// ReceivePool is a pool of receives.
type ReceivePool struct{ pool[ReceiveTask] }

// ReceiveTask waits for one message, from any connection or peer of the context. Messages take
// receives in the order of their submission.
type ReceiveTask struct {
	pe.Task
	control backend.Control
	ctx     *parts
	pool    *ReceivePool
	recv    receiving.Receive
	dst     *bufinv.Buf
	appends bool
	version bufferVersion // of dst, that recv describes
	sgl     []verbs.SGE

	arrival // what has come, once the task has succeeded
}

// ReceivePool makes a pool of n receives. done and failed run on the engine's
// goroutine, inside Progress; the error is a *TaskError, except where the destination
// was changed in flight. It is legal in Idle. Its errors are those of backend.NewPool.
//
// All connections together have up to Capabilities.MaxReceives receives at the device; further ones
// wait in the context, in order. With UC, and on a device without shared receive queues
// (verbs.DeviceAttr.MaxSRQ is 0), each connection gets an equal share of them, in turn; Start fails
// there with ErrRange if there are fewer than Config.MaxConnections.
func (c *parts) ReceivePool(n int, done func(*ReceiveTask), failed func(*ReceiveTask, error)) (*ReceivePool, error) {
	if c.receives.Each() > 0 {
		return nil, fmt.Errorf("rdma: make a pool of receives of context %q: %w: ReceivePerConnection was called, which gives each connection receives of its own; use one of the two", c.set.Name, ErrInvalid)
	}
	p := &ReceivePool{}
	err := p.fill(c, OpReceive, n, done, failed,
		func(t *ReceiveTask) *pe.Task { return &t.Task },
		func(t *ReceiveTask) {
			t.control, t.ctx, t.pool = c.control, c, p
			t.sgl = make([]verbs.SGE, 0, c.set.headerEntries()+c.set.recvSGE)
			c.receives.Add(&t.recv, (*taskReceiver)(t))
		},
		func(t *ReceiveTask) { _ = t.drop() })
	if err != nil {
		return nil, err
	}
	c.receives.Reserve(n)
	return p, nil
}

// Alloc takes a receive out of the pool, in Starting or Running. The message goes to dst, a
// list, at the beginning of its data. Submit discards the data that dst has, unless SetAppend
// has been called. A nil dst serves messages of no bytes, and writes with immediate. The task
// takes over the caller's reference to dst, even if Alloc fails. Errors match those of
// pe.Pool.Alloc, bufinv and mmap, and ErrRange.
func (p *ReceivePool) Alloc(dst *bufinv.Buf) (*ReceiveTask, error) {
	t, err := p.tasks.Alloc()
	if err != nil {
		freeAll(dst)
		return nil, err
	}
	t.dst, t.appends, t.arrival = dst, false, arrival{}
	if err := t.build(); err != nil {
		t.dst = nil
		freeAll(dst)
		_ = p.tasks.Free(t) // it was taken just now
		return nil, fmt.Errorf("rdma: allocate a receive: %w", err)
	}
	return t, nil
}

// build builds the request from the destination.
func (t *ReceiveTask) build() (err error) {
	t.version = 0
	if t.recv.SGL, err = t.gather(); err == nil {
		t.version = versionOf(t.dst)
	}
	return err
}

func (t *ReceiveTask) gather() ([]verbs.SGE, error) {
	list := t.ctx.receives.AppendHeader(t.sgl[:0], &t.recv)
	var err error
	if t.appends {
		list, err = t.dst.Friends(friend.Package{}).AppendRoomSGL(list, t.ctx.set.PD, -1)
	} else {
		list, err = t.dst.Friends(friend.Package{}).AppendEmptiedSGL(list, t.ctx.set.PD, -1)
	}
	if err != nil {
		return nil, err
	}
	return list, checkList(list, cap(t.sgl))
}

// Submit posts the receive, together with tasks that pe.Aggregate has made wait before it, and
// empties its buffer, unless SetAppend has been called. It is legal in Starting and Running,
// with connections or without. From Submit to the callback, the task, its buffers and their
// memory must not be touched. It allocates nothing. If it fails, the task remains the
// caller's, with the data in its buffer. Errors match pe.ErrBadState, pe.ErrInUse and
// pe.ErrFreed, and those of Alloc for the buffer.
func (t *ReceiveTask) Submit(flags ...pe.SubmitFlags) error {
	return t.submit(backend.JoinFlags(flags), false)
}

// TrySubmit is Submit after a check that the destination, if there is one, has room.
func (t *ReceiveTask) TrySubmit(flags ...pe.SubmitFlags) error {
	return t.submit(backend.JoinFlags(flags), true)
}

func (t *ReceiveTask) submit(flags pe.SubmitFlags, thorough bool) error {
	if err := t.enqueue(flags, thorough); err != nil {
		return err
	}
	t.ctx.submitted(flags)
	return nil
}

// context implements submittable.
func (t *ReceiveTask) context() *parts { return t.ctx }

// enqueue implements submittable.
func (t *ReceiveTask) enqueue(_ pe.SubmitFlags, thorough bool) error {
	if err := t.control.Begin(&t.Task, operations[OpReceive].submit); err != nil {
		return err
	}
	if err := t.prepare(thorough); err != nil {
		t.control.End(&t.Task)
		return fmt.Errorf("rdma: submit a receive: %w", err)
	}
	t.ctx.receives.Push(&t.recv)
	return nil
}

func (t *ReceiveTask) prepare(thorough bool) error {
	if thorough {
		if err := t.checkRoom(); err != nil {
			return err
		}
	}
	if !t.version.describes(t.dst) {
		if err := t.build(); err != nil {
			return err
		}
	}
	if t.appends {
		return nil
	}
	return t.version.follow(t.dst, t.dst.Empty)
}

// SetAppend makes the next messages go behind the data in the destination, until it is called
// again or the task is freed. Without it, each submission begins with an empty buffer. A
// message longer than the room left fails the task and its connection. In flight, SetAppend
// fails with pe.ErrInUse.
func (t *ReceiveTask) SetAppend(on bool) error {
	if err := t.control.MayChange(&t.Task, "place in the destination"); err != nil {
		return err
	}
	t.appends, t.version = on, 0
	return nil
}

func (t *ReceiveTask) checkRoom() error {
	if t.appends && t.dst.Err() == nil && t.dst != nil && t.dst.ListRoom() == 0 {
		return fmt.Errorf("%w: the destination is full, and the receive appends to it; call SetAppend(false), or empty the destination", ErrRange)
	}
	return nil
}

// taskReceiver is a ReceiveTask as the receiver of its receive.
type taskReceiver ReceiveTask

// arrived implements receiver.
func (r *taskReceiver) arrived(_ receiving.Taken, a *arrival) {
	t := (*ReceiveTask)(r)
	t.control.End(&t.Task)
	t.arrival = *a
	if a.opcode != ReceivedWriteImm && a.length > 0 {
		if t.appends {
			t.version = 0 // the next message goes behind this one
		}
		if err := t.version.follow(t.dst, func() error { return t.dst.Friends(friend.Package{}).AppendData(a.length) }); err != nil {
			t.pool.failed(t, fmt.Errorf("rdma: receive: the destination was changed in flight: %w", err))
			return
		}
	}
	if profiling.Tracing() {
		t.ctx.Friends(friend.Package{}).Traced("verbena receive callback", func() { t.pool.done(t) })
		return
	}
	t.pool.done(t)
}

// lengthAdvice implements receiver.
func (r *taskReceiver) lengthAdvice() string {
	t := (*ReceiveTask)(r)
	if t.appends {
		return fmt.Sprintf("the buffer had room for %d bytes after the %d in it; empty the buffer before Submit, or use a larger one", t.dst.ListRoom(), t.dst.ListDataLen())
	}
	return fmt.Sprintf("the buffer has room for %d bytes; make it as large as the peer's largest message", t.dst.ListRoom())
}

// failed implements receiver.
func (r *taskReceiver) failed(_ receiving.Taken, conn *Connection, err *TaskError) {
	t := (*ReceiveTask)(r)
	t.arrival = arrival{conn: conn}
	t.control.End(&t.Task)
	t.pool.failed(t, err)
}

// Flushed implements receiving.Owner.
func (r *taskReceiver) Flushed(posted bool) int {
	t := (*ReceiveTask)(r)
	if !t.InFlight() {
		return 0
	}
	cause := t.ctx.causeOf(nil)
	if t.ctx.kept != nil && posted {
		cause = t.ctx.kept
		t.dst.Friends(friend.Package{}).Keep(t.ctx.dev, cause)
	}
	r.failed(receiving.Taken{}, nil, &TaskError{Op: OpReceive, Status: verbs.StatusFlushed, Cause: cause})
	return 1
}

// Free puts the task back into its pool and drops its reference to its buffer. It
// is legal whenever the task is not in flight. Errors are those of pe.Pool.Free
// and bufinv.
func (t *ReceiveTask) Free() error {
	if err := t.pool.tasks.Free(t); err != nil {
		return err
	}
	return t.drop()
}

// drop releases the buffer of a freed task.
func (t *ReceiveTask) drop() error {
	dst := t.dst
	t.dst, t.arrival, t.appends, t.version = nil, arrival{}, false, 0
	return dst.Free()
}

// Operation is OpReceive.
func (t *ReceiveTask) Operation() Operation { return OpReceive }

// Destination is the buffer that messages go to, or nil.
func (t *ReceiveTask) Destination() *bufinv.Buf { return t.dst }

// SetDestination replaces the buffer. It takes over the caller's reference to the new one, in
// any case, and drops the reference to the old one.
func (t *ReceiveTask) SetDestination(dst *bufinv.Buf) error {
	err := t.control.MayChange(&t.Task, "destination")
	if err == nil {
		err = dst.Err()
	}
	if err != nil {
		freeAll(dst)
		return fmt.Errorf("rdma: set the destination of a receive: %w", err)
	}
	old := t.dst
	t.dst, t.version = dst, 0
	if old == dst {
		return nil
	}
	return old.Free()
}
