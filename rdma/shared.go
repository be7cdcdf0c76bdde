package rdma

import (
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/pe"
)

// SharedTasks is how many tasks the shared pool of a context has: so many operations
// from it can be allocated at a time.
const SharedTasks = 64

// sharedDepth is the send queue of a connection where the context has no other pools.
const sharedDepth = 16

// SharedPool is a pool of tasks for any operation. It spares a program the pools of
// operations that it does now and then. A context has one, which makes its tasks when it
// is asked for them first (Context.SharedPool).
type SharedPool struct {
	requestPool[SharedTask, *SharedTask]
}

// SharedTask is a task of the shared pool: the operation that it was allocated for.
type SharedTask struct{ request }

// SharedPool returns the context's shared pool: SharedTasks tasks, whose callbacks are
// pe.Done and pe.Failed, so that they are submitted with pe.Submit. No Start is needed
// after it, unlike after other pools: the context keeps room for these tasks. Where no
// other pool has been made, the connections' send queues take 16 tasks at a time;
// Config.SendQueueSize says otherwise.
//
// It belongs to the engine's goroutine, in Idle, Starting and Running. Errors match
// pe.ErrBadState, pe.ErrBusy, pe.ErrClosed, and ErrRange where the other pools take so
// much of the device's completion queue that nothing is left.
func (c *Context) SharedPool() (*SharedPool, error) {
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
		p := &SharedPool{}
		if err := p.make(c); err != nil {
			return nil, err
		}
		c.shared = p
	}
	return c.shared, nil
}

func (c *Context) noSharedRoom() error {
	return fmt.Errorf("rdma: use the shared pool of context %q: %w: the other pools hold %d tasks, and with them the completion queue of %s has no room for %d more; make the pools smaller",
		c.set.Name, ErrRange, c.requests+len(c.receives), c.dev.Name(), SharedTasks)
}

func (p *SharedPool) make(c *Context) error {
	i := 0
	tasks, err := pe.AddPool(c.control, "shared", SharedTasks,
		func(t *SharedTask) *pe.Task { return &t.Task },
		func(t *SharedTask) {
			t.registerShared(c, i, p, t)
			i++
		},
		func(t *SharedTask) { _ = t.drop() })
	if err != nil {
		return err
	}
	tasks.AllowStarting()
	p.pool = pool[SharedTask]{tasks, pe.Done[*SharedTask], pe.Failed[*SharedTask]}
	return nil
}

// take allocates a task for an operation.
func (p *SharedPool) take(op Operation, to Responder, local, remote *bufinv.Buf) (*SharedTask, error) {
	t, err := p.tasks.Alloc()
	if err == nil {
		if err = t.prepareShared(op); err != nil {
			_ = p.tasks.Free(t) // it was taken just now
		}
	}
	if err != nil {
		freeAll(local, remote)
		return nil, err
	}
	return p.giveTo(t, to, local, remote)
}

// prepareShared makes the task one of the operation.
func (r *request) prepareShared(op Operation) error {
	c := r.ctx
	switch {
	case !c.sharedFits:
		return c.noSharedRoom()
	case !c.set.caps.Supports(op):
		return fmt.Errorf("rdma: allocate a %v: %w by %s", op, ErrNotSupported, c.dev.Name())
	}
	r.op = op
	r.send.WR.Op = operations[op].verb
	return nil
}

// Send allocates a send, as SendPool.Alloc does. The buffers are the task's, also when
// the allocation fails; the same holds for the other operations.
func (p *SharedPool) Send(to Responder, src *bufinv.Buf) (*SharedTask, error) {
	return p.take(OpSend, to, src, nil)
}

// SendImm allocates a send with immediate, as SendImmPool.Alloc does.
func (p *SharedPool) SendImm(to Responder, src *bufinv.Buf, imm uint32) (*SharedTask, error) {
	t, err := p.take(OpSendImm, to, src, nil)
	if err == nil {
		t.send.WR.Imm = imm
	}
	return t, err
}

// Read allocates a read, as ReadPool.Alloc does.
func (p *SharedPool) Read(to Responder, src, dst *bufinv.Buf) (*SharedTask, error) {
	return p.take(OpRead, to, dst, src)
}

// Write allocates a write, as WritePool.Alloc does.
func (p *SharedPool) Write(to Responder, src, dst *bufinv.Buf) (*SharedTask, error) {
	return p.take(OpWrite, to, src, dst)
}

// WriteImm allocates a write with immediate, as WriteImmPool.Alloc does.
func (p *SharedPool) WriteImm(to Responder, src, dst *bufinv.Buf, imm uint32) (*SharedTask, error) {
	t, err := p.take(OpWriteImm, to, src, dst)
	if err == nil {
		t.send.WR.Imm = imm
	}
	return t, err
}

// CompareSwap allocates a compare-and-swap, as CompareSwapPool.Alloc does without a
// buffer for the result: Original has it.
func (p *SharedPool) CompareSwap(conn *Connection, dst *bufinv.Buf, compare, swap uint64) (*SharedTask, error) {
	t, err := p.take(OpCompareSwap, conn, nil, dst)
	if err == nil {
		t.send.WR.CompareAdd, t.send.WR.Swap = compare, swap
	}
	return t, err
}

// FetchAdd allocates a fetch-and-add, as FetchAddPool.Alloc does without a buffer for
// the result: Original has it.
func (p *SharedPool) FetchAdd(conn *Connection, dst *bufinv.Buf, add uint64) (*SharedTask, error) {
	t, err := p.take(OpFetchAdd, conn, nil, dst)
	if err == nil {
		t.send.WR.CompareAdd = add
	}
	return t, err
}

// Local is the list of buffers of this program that the task works on, or nil: the
// source of a send or write, the destination of a read.
func (t *SharedTask) Local() *bufinv.Buf { return t.local }

// Remote is the memory of the peer that the task works on, or nil.
func (t *SharedTask) Remote() *bufinv.Buf { return t.remote }

// SetAppend is that of a ReadTask. It has no effect on other operations.
func (t *SharedTask) SetAppend(on bool) error { return t.setAppend(on) }

// Original is the value that the peer's memory had before an atomic, once the task has
// completed.
func (t *SharedTask) Original() uint64 { return t.result }
