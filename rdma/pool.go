package rdma

import (
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/syncevent"
	"github.com/verbena-rdma/verbena/verbs"
)

// pool is what the pools of tasks, receives and windows have in common.
type pool[T any] struct {
	tasks  *pe.Pool[T]
	done   func(*T)
	failed func(*T, error)
}

// Cap is the number of tasks that the pool was made with.
func (p *pool[T]) Cap() int { return p.tasks.Cap() }

// String names the pool and its context.
func (p *pool[T]) String() string { return p.tasks.String() }

// Available is the number of tasks that can be allocated now.
func (p *pool[T]) Available() int { return p.tasks.Available() }

// fill makes the tasks of a pool, for one operation, which the device has to support, or, if it
// is 0, for any.
func (p *pool[T]) fill(c *Context, op Operation, n int, done func(*T), failed func(*T, error),
	taskOf func(*T) *pe.Task, init, drop func(*T),
) error {
	if err := c.control.Owned("make a pool of " + op.String() + "s"); err != nil {
		return err
	}
	if done == nil || failed == nil {
		return fmt.Errorf("rdma: make a pool of %vs: %w: it needs a function for those that succeed and one for those that fail", op, ErrInvalid)
	}
	if op != 0 && !c.set.caps.Supports(op) {
		return fmt.Errorf("rdma: make a pool of %vs: %w by %s", op, ErrNotSupported, c.dev.Name())
	}
	tasks, err := pe.NewPool(c.control, op.String(), n, taskOf, init, drop)
	if err != nil {
		return err
	}
	tasks.AllowStarting() // a receive needs no connection, and others need only theirs
	*p = pool[T]{tasks, done, failed}
	return nil
}

// Pool is a pool of tasks, each for any operation: the methods of the pool allocate it for one.
type Pool struct{ pool[Task] }

// Pool makes a pool of n tasks, at most pe.MaxTasks. done is called for each that succeeds, and
// failed for each that fails, on the engine's goroutine, inside Progress; the error is a
// *TaskError, except where buffers were changed in flight. A context can have several pools, for
// tasks that end differently. It is legal in Idle. Its errors are those of pe.NewPool, and
// ErrInvalid where a function is missing.
func (c *Context) Pool(n int, done func(*Task), failed func(*Task, error)) (*Pool, error) {
	p := &Pool{}
	err := p.fill(c, 0, n, done, failed, baseOf,
		func(t *Task) {
			t.register(c, p, c.words)
			c.words++
			c.requests++
		}, letGo)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// SharedTasks is how many tasks the shared pool of a context has.
const SharedTasks = 64

// sharedDepth is the send queue of a connection where the context has no other pools.
const sharedDepth = 16

// SharedPool returns the context's shared pool: SharedTasks tasks, whose callbacks are
// pe.Done and pe.Failed, so that they are submitted with pe.Submit. No Start is needed
// after it, unlike after other pools: the context keeps room for these tasks. Where no
// other pool has been made, the connections' send queues take 16 tasks at a time;
// Config.SendQueueSize says otherwise.
//
// It belongs to the engine's goroutine, in Idle, Starting and Running. Errors match
// pe.ErrBadState, pe.ErrBusy, pe.ErrClosed, and ErrRange where the other pools take so
// much of the device's completion queue that nothing is left.
func (c *Context) SharedPool() (*Pool, error) {
	if c.shared != nil && c.sharedFits && c.State() == pe.Running {
		return c.shared, nil
	}
	const op = "use the shared pool"
	if err := c.control.Owned(op); err != nil {
		return nil, err
	}
	if err := c.control.Require(op, pe.Idle, pe.Starting, pe.Running); err != nil {
		return nil, err
	}
	if c.State() != pe.Idle && !c.sharedFits {
		return nil, c.noSharedRoom()
	}
	if c.shared == nil {
		p, word := &Pool{}, 0
		tasks, err := pe.AddPool(c.control, "shared", SharedTasks, baseOf,
			func(t *Task) {
				t.register(c, p, word)
				word++
			}, letGo)
		if err != nil {
			return nil, err
		}
		tasks.AllowStarting()
		p.pool = pool[Task]{tasks, pe.Done[*Task], pe.Failed[*Task]}
		c.shared = p
	}
	return c.shared, nil
}

func (c *Context) noSharedRoom() error {
	return fmt.Errorf("rdma: use the shared pool of context %q: %w: the other pools hold %d tasks, and with them the completion queue of %s has no room for %d more; make the pools smaller",
		c.set.Name, ErrRange, c.requests+len(c.receives), c.dev.Name(), SharedTasks)
}

func baseOf(t *Task) *pe.Task { return &t.Task }
func letGo(t *Task)           { _ = t.drop() }

// register makes a task known to its context, once.
func (t *Task) register(c *Context, p *Pool, word int) {
	t.control, t.ctx, t.pool, t.self, t.word = c.control, c, p, t, word
	t.sgl = make([]verbs.SGE, 0, max(c.set.MaxSendSGE, 1))
	c.lanes.Add(&t.send, (*completer)(t))
}

// take takes a task out of the pool, for an operation.
func (p *Pool) take(op Operation) (*Task, error) {
	t, err := p.tasks.Alloc()
	if err != nil {
		return nil, err
	}
	c := t.ctx
	switch {
	case p == c.shared && !c.sharedFits:
		err = c.noSharedRoom()
	case !c.set.caps.Supports(op):
		err = fmt.Errorf("rdma: allocate a %v: %w by %s with %v", op, ErrNotSupported, c.dev.Name(), c.set.Transport)
	default:
		t.op, t.length, t.result, t.appends = op, 0, 0, false
		wr := &t.send.WR
		wr.Op, wr.Imm, wr.CompareAdd, wr.Swap, wr.InvalidateRKey = operations[op].verb, 0, 0, 0, 0
		return t, nil
	}
	_ = p.tasks.Free(t) // it was taken just now
	return nil, err
}

// alloc takes a task out of the pool and gives it its buffers.
func (p *Pool) alloc(op Operation, to Responder, local, remote *bufinv.Buf) (*Task, error) {
	t, err := p.take(op)
	if err == nil {
		if err = t.give(to, local, remote); err == nil {
			return t, nil
		}
		err = p.takeBack(t, err)
	}
	freeAll(local, remote)
	return nil, err
}

// allocEvent takes a task out of the pool and gives it its sync event.
func (p *Pool) allocEvent(op Operation, conn *Connection, ev *syncevent.Event) (*Task, error) {
	t, err := p.take(op)
	if err != nil {
		return nil, err
	}
	if err := t.giveEvent(conn, ev); err != nil {
		return nil, p.takeBack(t, err)
	}
	return t, nil
}

// takeBack puts back a task that was allocated in vain.
func (p *Pool) takeBack(t *Task, err error) error {
	_ = p.tasks.Free(t) // it was taken just now
	return fmt.Errorf("rdma: allocate a %v: %w", t.op, err)
}

// completed runs the callback of a task, which is no longer in flight.
func (p *Pool) completed(t *Task, err error) {
	if err != nil {
		p.failed(t, err)
		return
	}
	p.done(t)
}

// freeAll drops buffers that were handed over in vain.
func freeAll(bufs ...*bufinv.Buf) {
	for _, b := range bufs {
		_ = b.Free() // the error at hand says more
	}
}

// Send allocates a task that sends the data of src, a list, as a message, which takes a
// receive at the peer. Nil sends a message of no bytes. The task takes over the caller's
// reference to src, also when the allocation fails. This holds for the buffers of all
// operations.
//
// Errors of Send and of the methods below match those of pe.Pool.Alloc, bufinv and mmap,
// ErrInvalid, ErrNoData, ErrRange and ErrPermission, and ErrNotSupported where the device or the
// transport service does not have the operation.
func (p *Pool) Send(to Responder, src *bufinv.Buf) (*Task, error) {
	return p.alloc(OpSend, to, src, nil)
}

// SendImm is Send with 32 bits of immediate data.
func (p *Pool) SendImm(to Responder, src *bufinv.Buf, imm uint32) (*Task, error) {
	t, err := p.alloc(OpSendImm, to, src, nil)
	if err == nil {
		t.send.WR.Imm = imm
	}
	return t, err
}

// Read allocates a task that reads the data of src, memory of the peer, into dst, a list, which
// Submit empties unless SetAppend has been called. The peer's program is not notified. With both
// nil it reads no bytes.
func (p *Pool) Read(to Responder, src, dst *bufinv.Buf) (*Task, error) {
	return p.alloc(OpRead, to, dst, src)
}

// Write allocates a task that writes the data of src, a list, to the room of dst, memory of the
// peer, whose program is not notified. With src nil it writes no bytes, and dst may be nil too.
// Writing does not change dst: the next submission writes to the same place. When the task
// completes, the peer's device has acknowledged it; that does not mean that the peer's program
// can see the data: see the package comment.
func (p *Pool) Write(to Responder, src, dst *bufinv.Buf) (*Task, error) {
	return p.alloc(OpWrite, to, src, dst)
}

// WriteImm is Write with 32 bits of immediate data, which take a receive at the peer: its program
// is notified of the write.
func (p *Pool) WriteImm(to Responder, src, dst *bufinv.Buf, imm uint32) (*Task, error) {
	t, err := p.alloc(OpWriteImm, to, src, dst)
	if err == nil {
		t.send.WR.Imm = imm
	}
	return t, err
}

// CompareSwap allocates a task that stores swap if compare is the value of dst, 8 bytes of the
// peer's memory at an address that is a multiple of 8, in one step. Task.Original has the value
// that was there before; Task.SetResult puts it into a buffer, too. Values are in the byte order
// of their hosts (IBTA 9.4.5).
func (p *Pool) CompareSwap(conn *Connection, dst *bufinv.Buf, compare, swap uint64) (*Task, error) {
	t, err := p.alloc(OpCompareSwap, conn, nil, dst)
	if err == nil {
		t.send.WR.CompareAdd, t.send.WR.Swap = compare, swap
	}
	return t, err
}

// FetchAdd allocates a task that adds to the value of dst, modulo 2^64, in one step. Everything
// else is as with CompareSwap.
func (p *Pool) FetchAdd(conn *Connection, dst *bufinv.Buf, add uint64) (*Task, error) {
	t, err := p.alloc(OpFetchAdd, conn, nil, dst)
	if err == nil {
		t.send.WR.CompareAdd = add
	}
	return t, err
}

// SyncEventGet allocates a task that gets the value of ev, a sync event that the peer has
// exported and this program has imported, with a read; Task.Original has it then. The task holds
// ev until it is freed. The peer's Config.Permissions must have mmap.RemoteRead. Only the event's
// owner can wait for a value; others submit the task again until they get it. Errors match
// syncevent.ErrClosed, too.
func (p *Pool) SyncEventGet(conn *Connection, ev *syncevent.Event) (*Task, error) {
	return p.allocEvent(OpSyncEventGet, conn, ev)
}

// SyncEventSet allocates a task that sets ev to value, with a write, and so wakes those who wait
// for it at the peer. What they may rely on is in the package comment, under Sync events.
// Everything else is as with SyncEventGet, but for the permission.
func (p *Pool) SyncEventSet(conn *Connection, ev *syncevent.Event, value uint64) (*Task, error) {
	t, err := p.allocEvent(OpSyncEventSet, conn, ev)
	if err == nil {
		t.send.WR.CompareAdd = value
	}
	return t, err
}

// SyncEventAdd allocates a task that adds value, modulo 2^64, to ev, in one step, with a
// fetch-and-add, and so wakes those who wait for it at the peer; Task.Original has what it was
// before. The peer's Config.Permissions must have mmap.RemoteAtomic. Errors match
// ErrNotSupported where the device of the event's owner has no atomics. Everything else is as
// with SyncEventSet.
func (p *Pool) SyncEventAdd(conn *Connection, ev *syncevent.Event, value uint64) (*Task, error) {
	t, err := p.allocEvent(OpSyncEventAdd, conn, ev)
	if err == nil {
		t.send.WR.CompareAdd = value
	}
	return t, err
}
