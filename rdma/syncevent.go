package rdma

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/verbena-rdma/verbena/syncevent"
)

// eventRequest is what the tasks on a peer's sync event have in common.
type eventRequest struct{ request }

// Event is the sync event of the peer.
func (t *eventRequest) Event() *syncevent.Event { return t.event }

// SetEvent exchanges the sync event. The task releases the old one and holds the new
// one until it is freed. Errors are those of Alloc; in flight it fails with
// pe.ErrInUse.
func (t *eventRequest) SetEvent(ev *syncevent.Event) error {
	if err := t.control.MayChange(&t.Task, "event"); err != nil {
		return err
	}
	old := t.event
	if err := t.holdEvent(ev); err != nil {
		return fmt.Errorf("rdma: set the event of a %v: %w", t.op, err)
	}
	if old == nil {
		return nil
	}
	return old.Release()
}

// SyncEventGetPool is a pool of sync event gets.
type SyncEventGetPool struct {
	requestPool[SyncEventGetTask, *SyncEventGetTask]
}

// SyncEventGetTask gets the value of a sync event of the peer, with a read. Only the
// event's owner can wait for a value; others submit the task again until they get it.
type SyncEventGetTask struct{ eventRequest }

// SyncEventGetPool makes a pool of n sync event gets. done and failed run on the
// engine's goroutine, inside Progress; the error is a *TaskError. It is legal in
// Idle. Its errors are those of pe.NewPool, and ErrNotSupported.
func (c *Context) SyncEventGetPool(n int, done func(*SyncEventGetTask), failed func(*SyncEventGetTask, error)) (*SyncEventGetPool, error) {
	return makePool(&SyncEventGetPool{}, c, OpSyncEventGet, n, done, failed)
}

// Alloc takes a task out of the pool that gets the value of ev, a sync event that
// the peer has exported and this program has imported, and holds ev until the task
// is freed. The peer's Config.Permissions must have mmap.RemoteRead. Errors match
// those of pe.Pool.Alloc, and ErrInvalid and syncevent.ErrClosed.
func (p *SyncEventGetPool) Alloc(conn *Connection, ev *syncevent.Event) (*SyncEventGetTask, error) {
	return p.allocEvent(conn, ev)
}

// Value is the value that the event had, once the task has completed.
func (t *SyncEventGetTask) Value() uint64 { return t.result }

// SyncEventSetPool is a pool of sync event sets.
type SyncEventSetPool struct {
	requestPool[SyncEventSetTask, *SyncEventSetTask]
}

// SyncEventSetTask sets the value of a sync event of the peer, with a write, and so
// wakes those who wait for it there. What they may rely on is in the package
// comment, under Sync events.
type SyncEventSetTask struct{ eventRequest }

// SyncEventSetPool makes a pool of n sync event sets, as SyncEventGetPool does.
func (c *Context) SyncEventSetPool(n int, done func(*SyncEventSetTask), failed func(*SyncEventSetTask, error)) (*SyncEventSetPool, error) {
	return makePool(&SyncEventSetPool{}, c, OpSyncEventSet, n, done, failed)
}

// Alloc takes a task out of the pool that sets ev, a sync event that the peer has
// exported and this program has imported, to value, and holds ev until the task is
// freed. Errors match those of pe.Pool.Alloc, and ErrInvalid, ErrPermission and
// syncevent.ErrClosed.
func (p *SyncEventSetPool) Alloc(conn *Connection, ev *syncevent.Event, value uint64) (*SyncEventSetTask, error) {
	t, err := p.allocEvent(conn, ev)
	if err == nil {
		t.send.WR.CompareAdd = value
	}
	return t, err
}

// Value is the value to be set.
func (t *SyncEventSetTask) Value() uint64 { return t.send.WR.CompareAdd }

// SetValue sets the value that the next submission sets.
func (t *SyncEventSetTask) SetValue(value uint64) error { return t.setOperand(value) }

// SyncEventAddPool is a pool of sync event additions.
type SyncEventAddPool struct {
	requestPool[SyncEventAddTask, *SyncEventAddTask]
}

// SyncEventAddTask adds to the value of a sync event of the peer, in one step, with
// a fetch-and-add, and so wakes those who wait for it there. What they may rely on
// is in the package comment, under Sync events.
type SyncEventAddTask struct{ eventRequest }

// SyncEventAddPool makes a pool of n sync event additions, as SyncEventGetPool does.
func (c *Context) SyncEventAddPool(n int, done func(*SyncEventAddTask), failed func(*SyncEventAddTask, error)) (*SyncEventAddPool, error) {
	return makePool(&SyncEventAddPool{}, c, OpSyncEventAdd, n, done, failed)
}

// Alloc takes a task out of the pool that adds value, modulo 2^64, to ev, a sync
// event that the peer has exported and this program has imported, and holds ev
// until the task is freed. The peer's Config.Permissions must have
// mmap.RemoteAtomic. Errors match those of pe.Pool.Alloc, and ErrInvalid,
// ErrPermission, ErrNotSupported (the device of the event's owner has no atomics)
// and syncevent.ErrClosed.
func (p *SyncEventAddPool) Alloc(conn *Connection, ev *syncevent.Event, value uint64) (*SyncEventAddTask, error) {
	t, err := p.allocEvent(conn, ev)
	if err == nil {
		t.send.WR.CompareAdd = value
	}
	return t, err
}

// Original is the value that the event had before, once the task has completed.
func (t *SyncEventAddTask) Original() uint64 { return t.result }

// Value is the value to be added.
func (t *SyncEventAddTask) Value() uint64 { return t.send.WR.CompareAdd }

// SetValue sets the value that the next submission adds.
func (t *SyncEventAddTask) SetValue(value uint64) error { return t.setOperand(value) }

// giveEvent sets what a task that was just allocated works on.
func (r *request) giveEvent(conn *Connection, ev *syncevent.Event) error {
	r.length, r.result = 0, 0
	if err := r.ctx.owns(conn); err != nil {
		return err
	}
	if err := r.holdEvent(ev); err != nil {
		return err
	}
	r.conn = conn
	return nil
}

func (r *request) holdEvent(ev *syncevent.Event) error {
	if err := r.checkEvent(ev); err != nil {
		return err
	}
	if err := ev.Hold(); err != nil {
		return err
	}
	r.event = ev
	return nil
}

// checkEvent checks what the peer's descriptor says of its event.
func (r *request) checkEvent(ev *syncevent.Event) error {
	switch {
	case ev == nil:
		return fmt.Errorf("%w: no sync event is given; import the peer's", ErrInvalid)
	case !ev.Remote():
		return fmt.Errorf("%w: %v is of this program, which works on it directly; import the peer's", ErrInvalid, ev)
	case ev.Device() != r.ctx.dev:
		return fmt.Errorf("%w: %v was imported for %s, and the context is on %s; import it for that one too",
			ErrInvalid, ev, ev.Device().Name(), r.ctx.dev.Name())
	case r.op != OpSyncEventGet && !ev.Publishers().Has(syncevent.PublishRemote):
		return fmt.Errorf("%w: peers may get the value of %v, and not change it; its owner has to make it with syncevent.PublishRemote",
			ErrPermission, ev)
	case r.op == OpSyncEventAdd && !ev.Atomics():
		return fmt.Errorf("%w: the device of the owner of %v has no atomics; set it instead", ErrNotSupported, ev)
	}
	return nil
}

// prepareEvent points the work request at the event, and lays out what is set.
func (r *request) prepareEvent() {
	wr := &r.send.WR
	wr.RKey, wr.RemoteAddr = r.event.RKey(), r.event.Addr()
	if r.op == OpSyncEventSet {
		binary.NativeEndian.PutUint64(r.wordBytes(), r.inOrder(wr.CompareAdd))
	}
}

// takeValue takes the result of a get.
func (r *request) takeValue() { r.result = r.inOrder(binary.NativeEndian.Uint64(r.wordBytes())) }

// inOrder converts between the byte orders of this host and the event's.
func (r *request) inOrder(v uint64) uint64 {
	if r.event.Swapped() {
		return bits.ReverseBytes64(v)
	}
	return v
}
