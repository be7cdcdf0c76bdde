package rdma

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/syncevent"
)

// Event is the sync event of the peer that the task works on; nil for other operations.
func (r *Task) Event() *syncevent.Event { return r.event }

// SetEvent replaces the sync event. The task releases the old one, and holds the new one until
// the task is freed. Errors are those of the allocation, ErrInvalid if the operation works on
// no sync event, and pe.ErrInUse in flight.
func (r *Task) SetEvent(ev *syncevent.Event) error {
	if err := r.mayChange("event", r.op.onEvent()); err != nil {
		return err
	}
	old := r.event
	if err := r.holdEvent(ev); err != nil {
		return fmt.Errorf("rdma: set the event of a %v: %w", r.op, err)
	}
	if old == nil {
		return nil
	}
	return old.Friends(friend.Package{}).Release()
}

// setEvent sets the connection and the sync event of a newly allocated task.
func (r *Task) setEvent(conn *Connection, ev *syncevent.Event) error {
	if err := conn.belongsTo(r.ctx); err != nil {
		return err
	}
	if err := r.holdEvent(ev); err != nil {
		return err
	}
	r.to = conn
	return nil
}

func (r *Task) holdEvent(ev *syncevent.Event) error {
	if err := r.checkEvent(ev); err != nil {
		return err
	}
	if err := ev.Friends(friend.Package{}).Hold(); err != nil {
		return err
	}
	r.event = ev
	return nil
}

// checkEvent checks the event against the peer's descriptor.
func (r *Task) checkEvent(ev *syncevent.Event) error {
	switch {
	case ev == nil:
		return fmt.Errorf("%w: no sync event is given; import the peer's", ErrInvalid)
	case !ev.Remote():
		return fmt.Errorf("%w: %v belongs to this program, which can change it directly; import the peer's", ErrInvalid, ev)
	case ev.Device() != r.ctx.dev:
		return fmt.Errorf("%w: %v was imported for %s, and the context is on %s; import it for that device too",
			ErrInvalid, ev, ev.Device().Name(), r.ctx.dev.Name())
	case r.op != OpSyncEventGet && !ev.Publishers().Has(syncevent.PublishRemote):
		return fmt.Errorf("%w: peers may read %v but not change it; its owner must make it with syncevent.PublishRemote",
			ErrPermission, ev)
	case r.op == OpSyncEventAdd && !ev.Atomics():
		return fmt.Errorf("%w: the device of the owner of %v has no atomics; set it instead", ErrNotSupported, ev)
	}
	return nil
}

// prepareEvent points the work request at the event, and stores the value to be set.
func (r *Task) prepareEvent() {
	wr := &r.send.WR
	wr.RKey, wr.RemoteAddr = r.event.Friends(friend.Package{}).RKey(), r.event.Friends(friend.Package{}).Addr()
	if r.op == OpSyncEventSet {
		binary.NativeEndian.PutUint64(r.pool.words.bytes(r.word), r.hostOrder(wr.CompareAdd))
	}
}

// takeValue takes the result of a get.
func (r *Task) takeValue() {
	r.result = r.hostOrder(binary.NativeEndian.Uint64(r.pool.words.bytes(r.word)))
}

// hostOrder converts between the byte orders of this host and the event's.
func (r *Task) hostOrder(v uint64) uint64 {
	if r.event.Friends(friend.Package{}).Swapped() {
		return bits.ReverseBytes64(v)
	}
	return v
}
