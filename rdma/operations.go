package rdma

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/syncevent"
	"github.com/verbena-rdma/verbena/verbs"
)

// Send allocates a task that sends the data of src, a list, as a message, which takes a
// receive at the peer. Nil sends a message of no bytes. The task takes over the caller's
// reference to src, even if the allocation fails. This holds for the buffers of all
// operations.
//
// Errors of Send and of the methods below match those of pe.Pool.Alloc, bufinv and mmap,
// ErrInvalid, ErrNoData, ErrRange and ErrPermission, and ErrNotSupported where the device or the
// transport service does not have the operation.
func (p *Pool) Send(conn *Connection, src *bufinv.Buf) (*Task, error) {
	return p.alloc(OpSend, conn, src, nil)
}

// SendImm is Send with 32 bits of immediate data.
func (p *Pool) SendImm(conn *Connection, src *bufinv.Buf, imm uint32) (*Task, error) {
	return p.imm(OpSendImm, conn, src, nil, imm)
}

// Read allocates a task that reads the data of src, memory of the peer, into dst, a list, which
// Submit empties unless SetAppend has been called. The peer's program is not notified. With both
// nil it reads no bytes.
func (p *Pool) Read(conn *Connection, src, dst *bufinv.Buf) (*Task, error) {
	return p.alloc(OpRead, conn, dst, src)
}

// Write allocates a task that writes the data of src, a list, to the room of dst, memory of the
// peer, whose program is not notified. With src nil it writes no bytes, and dst may be nil too.
// Writing does not change dst: the next submission writes to the same place. When the task
// completes, the peer's device has acknowledged it; that does not mean that the peer's program
// can see the data: see Pool, Order.
func (p *Pool) Write(conn *Connection, src, dst *bufinv.Buf) (*Task, error) {
	return p.alloc(OpWrite, conn, src, dst)
}

// WriteImm is Write with 32 bits of immediate data, which take a receive at the peer: its program
// is notified of the write.
func (p *Pool) WriteImm(conn *Connection, src, dst *bufinv.Buf, imm uint32) (*Task, error) {
	return p.imm(OpWriteImm, conn, src, dst, imm)
}

// AtomicWrite allocates a task that writes the data of src, 8 bytes, to dst, 8 bytes of the
// peer's memory at an address that is a multiple of 8, in one store: nobody sees a part of them.
// A program that sees them finds the data of all earlier sends and writes in place. When the
// task completes, the peer's memory holds them. It counts among the reads and atomics under way.
// The devices of both ends must have it (Capabilities.AtomicWrites). Buffers are as with Write.
func (p *Pool) AtomicWrite(conn *Connection, src, dst *bufinv.Buf) (*Task, error) {
	return p.alloc(OpAtomicWrite, conn, src, dst)
}

// CompareSwap allocates a task that stores swap if compare is the value of dst, 8 bytes of the
// peer's memory at an address that is a multiple of 8, in one step. Task.Original has the
// value that was there before; Task.SetResult also stores it in a buffer. Values are in the
// byte order of their hosts (IBTA 9.4.5).
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
// exported and this program has imported, with a read; Task.Original returns it. The task
// holds ev until it is freed. The peer's Config.Permissions must have mmap.RemoteRead. Only
// the event's owner can wait for a value; others submit the task again until they get it.
// Errors match syncevent.ErrClosed, too.
func (p *Pool) SyncEventGet(conn *Connection, ev *syncevent.Event) (*Task, error) {
	return p.allocEvent(OpSyncEventGet, conn, ev)
}

// SyncEventSet allocates a task that sets ev to value, with a write, which wakes the waiters
// at the peer. Everything else is as with SyncEventGet, except that it needs no permission.
//
// What the peer may rely on when its wait has returned:
//
//   - After an addition: the data of all earlier writes and sends of the same connection is in
//     place. By IBTA 9.5, the data of a write is in place after any of three: the write's own
//     immediate has arrived, a later send has completed at the peer, or a later atomic has
//     changed memory.
//   - After a set: the same on the software device, which places packets in the order of their
//     sequence numbers, and the value last, with an atomic store. No standard promises it for
//     adapters: a set is a plain write, and IBTA 9.5 does not say when a write becomes visible
//     if nothing follows it. In practice it holds where the writes of an adapter reach memory
//     in order, which is the rule of PCI Express for writes without relaxed ordering (Base
//     Specification, 2.4.1). If the program depends on it, use an addition.
//   - Relaxed ordering removes these guarantees (ibv_reg_mr(3), ordering semantics): neither
//     the map that the data goes to nor one that holds an event may have mmap.RelaxedOrdering.
//     The library's own memory of an event never does.
//   - Reads and gets are the exception: those submitted before may still be under
//     way, and may see what later writes, sets and additions do (IBTA 10.8.3.3,
//     table of ordering rules). Those submitted after see it all.
//   - Across connections: nothing, even between the same two contexts.
//
// A completed set or addition tells the sender that the peer's device has it. It does not mean
// that a waiter was woken.
//
// On the software device nobody sees half of a set: a write of 8 aligned bytes is one atomic
// store. On 64-bit machines a get never returns half of one. For adapters the standards do not
// promise this: PCI Express recommends that writes become visible in units of no less than 4
// bytes (Base Specification, 2.4.3), and machines today write 8 aligned bytes at once. Atomics
// are never torn, on any device.
func (p *Pool) SyncEventSet(conn *Connection, ev *syncevent.Event, value uint64) (*Task, error) {
	t, err := p.allocEvent(OpSyncEventSet, conn, ev)
	if err == nil {
		t.send.WR.CompareAdd = value
	}
	return t, err
}

// SyncEventAdd allocates a task that adds value, modulo 2^64, to ev, in one step, with a
// fetch-and-add, which wakes the waiters at the peer. Task.Original returns the value before.
// The peer's Config.Permissions must have mmap.RemoteAtomic. Errors match ErrNotSupported
// where the device of the event's owner has no atomics. Everything else is as with
// SyncEventSet.
func (p *Pool) SyncEventAdd(conn *Connection, ev *syncevent.Event, value uint64) (*Task, error) {
	t, err := p.allocEvent(OpSyncEventAdd, conn, ev)
	if err == nil {
		t.send.WR.CompareAdd = value
	}
	return t, err
}

// Send allocates a task that sends the data of src to a peer, as Pool.Send does. With UD the
// message must fit into one packet (Capabilities.MaxSend).
func (p *DatagramPool) Send(to *Peer, src *bufinv.Buf) (*Task, error) {
	return p.alloc(OpSend, to, src, nil)
}

// SendImm is Send with 32 bits of immediate data.
func (p *DatagramPool) SendImm(to *Peer, src *bufinv.Buf, imm uint32) (*Task, error) {
	return p.imm(OpSendImm, to, src, nil, imm)
}

// Read allocates a task that reads memory of the peer, as Pool.Read does. UD has no reads
// (ErrNotSupported).
func (p *DatagramPool) Read(to *Peer, src, dst *bufinv.Buf) (*Task, error) {
	return p.alloc(OpRead, to, dst, src)
}

// Write allocates a task that writes to memory of the peer, as Pool.Write does. UD has no writes
// (ErrNotSupported).
func (p *DatagramPool) Write(to *Peer, src, dst *bufinv.Buf) (*Task, error) {
	return p.alloc(OpWrite, to, src, dst)
}

// WriteImm is Write with 32 bits of immediate data, as Pool.WriteImm.
func (p *DatagramPool) WriteImm(to *Peer, src, dst *bufinv.Buf, imm uint32) (*Task, error) {
	return p.imm(OpWriteImm, to, src, dst, imm)
}

// imm is alloc for an operation with immediate data.
func (p *taskPool) imm(op Operation, to target, local, remote *bufinv.Buf, imm uint32) (*Task, error) {
	t, err := p.alloc(op, to, local, remote)
	if err == nil {
		t.send.WR.Imm = imm
	}
	return t, err
}

// setBuffers sets the target and the buffers of a newly allocated task.
func (r *Task) setBuffers(to target, local, remote *bufinv.Buf) error {
	if err := to.belongsTo(r.ctx); err != nil {
		return err
	}
	r.to, r.local, r.remote = to, local, remote
	err := r.build(true)
	if err == nil {
		return nil
	}
	if ended := to.accepts(r); ended != nil {
		err = ended // the reason why the peer's memory is no longer there
	}
	r.to, r.local, r.remote = nil, nil, nil
	return err
}

// Pool is a pool of tasks of a context of connections. A task can do any operation; the
// methods of the pool allocate it for one.
//
// # Buffers
//
// Alloc hands buffers over to the task, with their references, even when it fails;
// Free drops them. bufinv.Buf.Ref keeps a buffer beyond that. From Submit to the
// callback, the memory and the buffers must not be touched; in the callback they are
// the program's again. Receives, reads and the results of atomics begin with empty buffers
// each time that they are submitted, unless SetAppend has been called; package bufinv has
// the rule. A receive that is too small for its message fails, at both ends.
//
// A source without data is an error, because nothing would be moved. No buffer at all
// makes a message of no bytes.
//
// # Order
//
// Tasks of one connection begin, and complete, in the order of submission (IBTA 10.8.3);
// callbacks of one connection come in that order. At the peer, a send, or a write with
// immediate, shows up after the data of all earlier writes of the same connection is in place
// (IBTA 9.5). A read may still be under way when later sends and writes take effect (IBTA
// 10.8.3.3): wait for its callback where that matters. There is no order between connections.
//
// A completed write or send means that the peer's device has it, not that the
// peer's program has seen it, nor that the program lives. To notify the peer of a
// write, use a write with immediate, or a send after it. Do not watch memory for
// the last byte: in which order bytes of one message appear is not defined.
//
// Atomics are atomic to other atomics through the same device of the peer (IBTA 9.4.5.1), and
// on the software device also to sync/atomic of the peer's program.
//
// # A pool for many connections
//
// A task is out of the pool until it is freed. So one slow peer can hold them all: one that is silent
// holds those submitted to it until the device gives up, one that posts no receives holds sends for
// as long as Config.RNRRetry says. Tasks that others have then go on: each connection has its own
// queue pair, and can have a task at the device in any case. But the next allocation fails for every
// connection, with an error that matches pe.ErrExhausted. Give each connection a pool of its own, or
// count the tasks of each and limit them. To wait for a task instead, use a pe.Waiter: it calls a
// function when one is free, the first that waits first (see the example).
//
// # Queues
//
// The program never meets a full queue: tasks that find no room at the device wait in the context, in
// order. Receives of all pools share one queue.
type Pool struct{ taskPool }

// DatagramPool is a pool of tasks of a context of datagrams. A task can do any operation; the
// methods of the pool allocate it for one.
type DatagramPool struct{ taskPool }

// Pool makes a pool of n tasks, at most pe.MaxTasks. done is called for each task that
// succeeds, and failed for each that fails, on the engine's goroutine, inside Progress; the
// error is a *TaskError, except where buffers were changed in flight. With pe.TaskDone and pe.TaskFailed,
// each task has a function of its own: see pe.SubmitOrFree. A context can have several pools,
// with different callbacks.
//
// It is legal in Idle, Starting and Running. A pool that is made in Idle makes the queues at the
// device larger (Config.SendQueueSize); tasks of one that is made later wait, in order, while
// the queues are full. Its errors are those of backend.AddPool, ErrInvalid if a function is missing,
// and the device's.
func (c *Connections) Pool(n int, done func(*Task), failed func(*Task, error)) (*Pool, error) {
	p := &Pool{}
	if err := c.newPool(&p.taskPool, n, done, failed); err != nil {
		return nil, err
	}
	return p, nil
}

// Pool makes a pool of n tasks, as Connections.Pool does.
func (c *Datagrams) Pool(n int, done func(*Task), failed func(*Task, error)) (*DatagramPool, error) {
	p := &DatagramPool{}
	if err := c.newPool(&p.taskPool, n, done, failed); err != nil {
		return nil, err
	}
	return p, nil
}

func (c *parts) newPool(p *taskPool, n int, done func(*Task), failed func(*Task, error)) error {
	// The words come first, since a pool cannot be taken back. fill refuses another n.
	if c.set.caps.connections() && 1 <= n && n <= pe.MaxTasks { // others have no tasks that need words
		if err := c.control.Owned("make a pool of tasks"); err != nil {
			return err
		}
		p.words.n = n
		if err := c.scratch.add(&p.words); err != nil {
			return fmt.Errorf("rdma: make a pool of %d tasks in context %q: %w", n, c.set.Name, err)
		}
	}
	word := 0
	err := p.fill(c, 0, n, done, failed, peTaskOf,
		func(t *Task) {
			t.register(c, p, word)
			word++
		}, dropTask)
	if err != nil {
		return errors.Join(err, c.scratch.remove(&p.words))
	}
	c.lanes.tasks += n
	return nil
}

func peTaskOf(t *Task) *pe.Task { return &t.Task }
func dropTask(t *Task)          { _ = t.drop() }

// register makes a task known to its context, once.
func (t *Task) register(c *parts, p *taskPool, word int) {
	t.control, t.ctx, t.pool, t.word = c.control, c, p, word
	t.sgl = make([]verbs.SGE, 0, max(c.set.sendSGE, 1))
	c.lanes.Add(&t.send, (*completer)(t))
}

// allocate takes a task out of the pool, for an operation.
func (p *taskPool) allocate(op Operation) (*Task, error) {
	t, err := p.tasks.Alloc()
	if err != nil {
		return nil, err
	}
	if c := t.ctx; !c.set.caps.Supports(op) {
		_ = p.tasks.Free(t) // it was taken just now
		return nil, fmt.Errorf("rdma: allocate a %v: %w by %s with %v", op, ErrNotSupported, c.dev.Name(), c.set.Transport)
	}
	t.op, t.length, t.result, t.appends = op, 0, 0, false
	wr := &t.send.WR
	wr.Op, wr.Imm, wr.CompareAdd, wr.Swap, wr.InvalidateRKey = operations[op].verb, 0, 0, 0, 0
	return t, nil
}

// alloc takes a task out of the pool and gives it its buffers.
func (p *taskPool) alloc(op Operation, to target, local, remote *bufinv.Buf) (*Task, error) {
	t, err := p.allocate(op)
	if err == nil {
		if err = t.setBuffers(to, local, remote); err == nil {
			return t, nil
		}
		err = p.allocFailed(t, err)
	}
	freeAll(local, remote)
	return nil, err
}

// allocEvent takes a task out of the pool and gives it its sync event.
func (p *taskPool) allocEvent(op Operation, conn *Connection, ev *syncevent.Event) (*Task, error) {
	t, err := p.allocate(op)
	if err != nil {
		return nil, err
	}
	if err := t.setEvent(conn, ev); err != nil {
		return nil, p.allocFailed(t, err)
	}
	return t, nil
}

// allocFailed puts back a task whose allocation failed.
func (p *taskPool) allocFailed(t *Task, err error) error {
	_ = p.tasks.Free(t) // it was taken just now
	return fmt.Errorf("rdma: allocate a %v: %w", t.op, err)
}
