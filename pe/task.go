package pe

import "fmt"

// SubmitFlags say how a task is submitted. Zero submits it, and all that were
// held back before it, at once.
type SubmitFlags uint8

// The submit flags.
const (
	// Aggregate lets the task wait, so that several go to the device together:
	// until the next submission without it, or the next Progress (the end of
	// the current one, inside a callback) at the latest.
	Aggregate SubmitFlags = 1 << iota
	// OptimizeReports lets the callback wait for that of a later task submitted
	// without it. It does not wait when no such task is in flight.
	OptimizeReports
)

type taskLife uint8

const (
	taskFree taskLife = iota
	taskHeld          // the user's
	taskInFlight
)

// Task is the part that all kinds of task have in common. A kind embeds a Task
// by value, and takes its tasks from a Pool. It must not be copied, and belongs
// to the goroutine that drives the engine.
//
// A task is the user's from Pool.Alloc until it is submitted, and again from its
// callback on. It may be submitted again, also in the callback, and must be
// freed in the end.
type Task struct {
	pool     *pool
	self     *Task // tells a copy from the task
	userData any
	life     taskLife
}

// UserData returns what SetUserData stored since the task was allocated.
func (t *Task) UserData() any { return t.userData }

// SetUserData stores a value of the user's with the task, until it is freed.
func (t *Task) SetUserData(v any) { t.userData = v }

// Engine is the engine that drives the task's context, or nil.
func (t *Task) Engine() *Engine {
	if t.pool == nil {
		return nil
	}
	return t.pool.core.Engine()
}

// InFlight reports whether the task is submitted and not completed.
func (t *Task) InFlight() bool { return t.life == taskInFlight }

// Begin puts the task in flight. It is for implementers: call it first when the
// task is submitted, and Abort if posting fails afterwards. It fails if the
// context is not Running (*StateError), the task is in flight (ErrInUse) or not
// allocated (ErrFreed). The operation is for the errors: "submit a write".
func (t *Task) Begin(op string) error {
	if t.life != taskHeld || t.self != t || State(t.pool.core.state.Load()) != Running {
		return t.refuse(op)
	}
	t.life = taskInFlight
	t.pool.core.inFlight++
	return nil
}

// Abort takes back Begin: the task was not posted and remains the user's.
func (t *Task) Abort() { t.End() }

// End takes the task out of flight: it is completed, and the user's again. It is
// for implementers: call it before the callback is run. It does nothing if the
// task is not in flight.
func (t *Task) End() {
	if t.life == taskInFlight {
		t.life = taskHeld
		t.pool.core.inFlight--
	}
}

// MayChange fails unless the task is the user's: in flight (ErrInUse) or not
// allocated (ErrFreed). It is for implementers: call it first in what changes a
// task, in any state of the context. What is changed is for the errors: "source".
// It allocates nothing unless it fails.
func (t *Task) MayChange(what string) error {
	if t.life != taskHeld || t.self != t {
		return t.refuse("set the " + what)
	}
	return nil
}

// refuse explains why Begin, MayChange or Free cannot be.
func (t *Task) refuse(op string) error {
	switch {
	case t.pool == nil || t.self != t:
		return fmt.Errorf("pe: cannot %s: the task came from no pool, or is a copy of one that did, and counts as %w", op, ErrFreed)
	case t.life == taskFree:
		return fmt.Errorf("pe: cannot %s: %s: the task was %w", op, t.pool.object(), ErrFreed)
	case t.life == taskInFlight:
		return fmt.Errorf("pe: cannot %s: %s: the task is in flight: %w; wait for its callback", op, t.pool.object(), ErrInUse)
	}
	return t.pool.core.Require(op, Running)
}
