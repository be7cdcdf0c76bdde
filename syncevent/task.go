package syncevent

import (
	"fmt"
	"strconv"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/pe"
)

// Operation is a kind of task. Zero is none.
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
	0:      {"task", "submit a task", "use"}, // of a task that came from no pool
	OpGet:  {"get", "submit a get", "get"},
	OpSet:  {"set", "submit a set", "set"},
	OpAdd:  {"addition", "submit an addition", "add to"},
	OpWait: {"wait", "submit a wait", "wait for"},
}

// String names the operation.
func (o Operation) String() string {
	if o >= 0 && int(o) < len(operations) {
		return operations[o].name
	}
	return "operation " + strconv.Itoa(int(o))
}

// task is what all kinds of task have in common.
type task struct {
	pe.Task
	control *pe.Control
	ctx     *Context
	ev      *Event
	node    fifo.Node[*task] // in submitted or ready
	kind    kind             // the task itself
	op      Operation
	flushed bool // a wait that Stop has ended
}

// kind is what the kinds of task differ in.
type kind interface {
	post() error // after Begin
	do()         // the operation, in Progress
	succeeded()
	failed(error)
}

// Submit submits the task: a get, a set or an addition is done in the next Progress,
// a wait is reported once its condition holds. Until its callback the task must not
// be used. Submit allocates nothing. It fails if the context is not Running
// (*pe.StateError), or the task is in flight (pe.ErrInUse) or not allocated
// (pe.ErrFreed); then the task remains the caller's.
func (t *task) Submit() error { return t.SubmitWith(0) }

// SubmitWith is Submit with flags. They have no effect here, since tasks of this
// context gain nothing from going together.
func (t *task) SubmitWith(_ pe.SubmitFlags) error {
	if err := t.control.Begin(&t.Task, operations[t.op].submit); err != nil {
		return err
	}
	if err := t.kind.post(); err != nil {
		t.control.Abort(&t.Task)
		return fmt.Errorf("syncevent: %s: %w", operations[t.op].submit, err)
	}
	return nil
}

// Operation is the task's kind.
func (t *task) Operation() Operation { return t.op }

// Event is the event that the task works on.
func (t *task) Event() *Event { return t.ev }

// SetEvent makes the task work on another event, and lets go of the present one. Its
// errors are those of the allocation, and pe.ErrInUse (in flight) and pe.ErrFreed.
func (t *task) SetEvent(e *Event) error {
	if err := t.control.MayChange(&t.Task, "event"); err != nil {
		return err
	}
	old := t.ev
	if err := t.holdEvent(e); err != nil {
		return fmt.Errorf("syncevent: set the event of a %v: %w", t.op, err)
	}
	if old == nil {
		return nil
	}
	return old.Release()
}

// holdEvent makes e the task's event, and holds it.
func (t *task) holdEvent(e *Event) error {
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
func (t *task) releaseEvent() error {
	e := t.ev
	t.ev = nil
	return e.Release()
}

// enqueue leaves the task to the next Progress.
func (t *task) enqueue() {
	t.ctx.submitted.Push(&t.node)
	t.control.Wake()
}

// finish does the operation, unless it was flushed, and runs the callback.
func (t *task) finish(flushed bool) {
	t.control.End(&t.Task)
	if flushed {
		t.flushed = false
		t.kind.failed(&TaskError{Op: t.op, Event: t.ev, Cause: t.ctx.Err()})
		return
	}
	t.kind.do()
	t.kind.succeeded()
}
