package syncevent

import (
	"fmt"
	"strconv"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/internal/profiling"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/pe/backend"
)

// Operation is the operation of a task. Zero is none.
type Operation int

// The operations.
const (
	OpGet Operation = iota + 1
	OpSet
	OpAdd
	OpWait
)

var operations = [...]struct {
	name   string
	submit string // for errors; made in advance for the hot path
	verb   string // the same
}{
	OpGet:  {"get", "submit a get", "get"},
	OpSet:  {"set", "submit a set", "set"},
	OpAdd:  {"addition", "submit an addition", "add to"},
	OpWait: {"wait", "submit a wait", "wait for"},
}

// String names the operation.
func (o Operation) String() string {
	if o > 0 && int(o) < len(operations) {
		return operations[o].name
	}
	return "operation " + strconv.Itoa(int(o))
}

// Task is one operation on a sync event. A method of Pool allocates it for that operation. It
// can be submitted again and again, until Free puts it back.
type Task struct {
	pe.Task
	control backend.Control
	ctx     *Context
	pool    *Pool
	ev      *Event
	node    fifo.Node[*Task] // in submitted or ready
	op      Operation
	value   uint64 // to set or add
	waiter  waiter // for a wait; seen is the result of the other operations too
	flushed bool   // a wait that Stop has ended
}

// Submit submits the task. The next Progress does a get, a set or an addition; a wait is
// reported once its condition holds. The task must not be used until its callback. Submit
// allocates nothing. It fails if the context is not Running (*pe.StateError), or the task is
// in flight (pe.ErrInUse) or not allocated (pe.ErrFreed); then the task remains the caller's.
// Flags have no effect, because tasks of this context gain nothing from going together.
func (t *Task) Submit(_ ...pe.SubmitFlags) error {
	if err := t.control.Begin(&t.Task, operations[t.op].submit); err != nil {
		return err
	}
	if t.op == OpWait {
		t.ev.mu.Lock()
		defer t.ev.mu.Unlock()
		t.ev.addWaiter(&t.waiter) // it wakes the task at once if the condition holds
		return nil
	}
	t.ctx.submitted.Push(&t.node)
	t.control.Wake()
	return nil
}

// Free puts the task back into its pool and releases its event. It is legal whenever the task
// is not in flight. Errors are those of pe.Pool.Free.
func (t *Task) Free() error {
	if err := t.pool.tasks.Free(t); err != nil {
		return err
	}
	return t.releaseEvent()
}

// Operation is the operation that the task was allocated for.
func (t *Task) Operation() Operation { return t.op }

// Event is the event that the task works on.
func (t *Task) Event() *Event { return t.ev }

// Value is the value that the task sets or adds; 0 for other operations.
func (t *Task) Value() uint64 { return t.value }

// Original is the value that the event had when a get read it, before an addition, or when it
// fulfilled the condition of a wait. The event may have another value by now. Original is 0
// before the task has completed, and for a set.
func (t *Task) Original() uint64 { return t.waiter.seen }

// SetValue sets the value that the next submission sets or adds. Errors match pe.ErrInUse (in
// flight), pe.ErrFreed, and ErrInvalid where the operation has no value.
func (t *Task) SetValue(value uint64) error {
	if err := t.control.MayChange(&t.Task, "value"); err != nil {
		return err
	}
	if t.op != OpSet && t.op != OpAdd {
		return fmt.Errorf("syncevent: set the value of a %v: %w: this operation has no value", t.op, ErrInvalid)
	}
	t.value = value
	return nil
}

// SetCondition sets the condition for the next submission of a wait. Errors match ErrInvalid,
// as in Event.Wait and where the operation is not a wait, pe.ErrInUse (in flight) and
// pe.ErrFreed.
func (t *Task) SetCondition(c Condition) error {
	if err := t.control.MayChange(&t.Task, "condition"); err != nil {
		return err
	}
	err := c.check()
	if t.op != OpWait {
		err = fmt.Errorf("%w: this operation has no condition", ErrInvalid)
	}
	if err != nil {
		return fmt.Errorf("syncevent: set the condition of a %v: %w", t.op, err)
	}
	t.waiter.Condition = c
	return nil
}

// SetEvent sets another event for the task, and releases the present one. Its errors are those
// of the allocation, and pe.ErrInUse (in flight) and pe.ErrFreed.
func (t *Task) SetEvent(e *Event) error {
	if err := t.control.MayChange(&t.Task, "event"); err != nil {
		return err
	}
	old := t.ev
	if err := t.holdEvent(e); err != nil {
		return fmt.Errorf("syncevent: set the event of a %v: %w", t.op, err)
	}
	return forFriends{old}.Release()
}

// holdEvent makes e the task's event, and holds it.
func (t *Task) holdEvent(e *Event) error {
	if e == nil {
		return fmt.Errorf("%w: no sync event is given", ErrInvalid)
	}
	if t.op == OpSet || t.op == OpAdd {
		if err := e.mayPublish(operations[t.op].verb); err != nil {
			return err
		}
	}
	if err := e.begin(operations[t.op].verb, oneHold); err != nil {
		return err
	}
	t.ev = e
	return nil
}

// releaseEvent releases the event of a task that was freed.
func (t *Task) releaseEvent() error {
	e := t.ev
	t.ev = nil
	return forFriends{e}.Release()
}

// conditionMet passes a wait to the engine, for its callback. It may be called from any
// goroutine.
func (t *Task) conditionMet() {
	c := t.ctx
	c.mu.Lock()
	c.ready.Push(&t.node)
	c.mu.Unlock()
	c.control.Wake()
}

// finish does the operation, unless it was flushed, and runs the callback.
func (t *Task) finish(flushed bool) {
	t.control.End(&t.Task)
	if flushed {
		t.flushed = false
		t.report(&TaskError{Op: t.op, Event: t.ev, Cause: t.ctx.Err()})
		return
	}
	switch t.op {
	case OpGet:
		t.waiter.seen = t.ev.load()
	case OpSet:
		t.ev.set(t.value)
	case OpAdd:
		t.waiter.seen = t.ev.add(t.value)
	}
	t.report(nil)
}

// report runs the callback.
func (t *Task) report(err error) {
	if profiling.Tracing() {
		t.ctx.Friends(friend.Package{}).Traced("verbena task callback", func() { t.call(err) })
		return
	}
	t.call(err)
}

func (t *Task) call(err error) {
	if err != nil {
		t.pool.failed(t, err)
		return
	}
	t.pool.done(t)
}
