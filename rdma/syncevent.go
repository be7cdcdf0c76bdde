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

// SetEvent exchanges the sync event. The task lets go of the old one and holds the
// new one. Errors are those of Alloc and of pe.Task.MayChange.
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

// allocEvent takes a task out of a pool and gives it its sync event.
func allocEvent[T any](p *pool[T], of func(*T) *request, conn *Connection, ev *syncevent.Event) (*T, error) {
	t, err := p.tasks.Alloc()
	if err != nil {
		return nil, err
	}
	r := of(t)
	r.length, r.value, r.old = 0, 0, 0
	if err = r.ctx.owns(conn); err == nil {
		err = r.holdEvent(ev)
	}
	if err != nil {
		_ = p.tasks.Free(t) // it was taken just now
		return nil, fmt.Errorf("rdma: allocate a %v: %w", r.op, err)
	}
	r.conn = conn
	return t, nil
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

// checkEvent checks what the peer's descriptor tells of its event.
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
	r.send.WR.RKey, r.send.WR.RemoteAddr = r.event.RKey(), r.event.Addr()
	if r.op == OpSyncEventSet {
		binary.NativeEndian.PutUint64(r.wordBytes(), r.inOrder(r.value))
	}
}

// takeValue takes what a get has brought.
func (r *request) takeValue() { r.value = r.inOrder(binary.NativeEndian.Uint64(r.wordBytes())) }

// inOrder converts between the byte orders of this host and the event's.
func (r *request) inOrder(v uint64) uint64 {
	if r.event.Swapped() {
		return bits.ReverseBytes64(v)
	}
	return v
}
