package pe

import "fmt"

// SubmitFlags say how to submit a task. Zero submits the task, and all tasks held back before
// it, at once.
type SubmitFlags uint8

// The submit flags.
const (
	// Aggregate lets the task wait, so that several go to the device together. It waits at
	// most until the next submission without the flag, Flush of the context, or the next
	// Progress (the end of the current one, inside a callback).
	Aggregate SubmitFlags = 1 << iota
	// OptimizeReports lets the callback wait for the callback of a later task submitted
	// without the flag. It does not wait when no such task is in flight.
	OptimizeReports
)

type taskLife uint8

const (
	taskFree taskLife = iota
	taskHeld          // the user's
	taskInFlight
)

// Task is the part that all kinds of task have in common. A kind embeds a Task by value, and
// takes its tasks from a Pool; its backend submits and completes them (package backend). A Task must not be copied,
// and belongs to the goroutine that drives the engine.
//
// A task is the user's from Pool.Alloc until it is submitted, and again from its callback on.
// It may be submitted again, also in the callback, and must be freed in the end.
type Task struct {
	pool     *pool
	self     *Task // differs in a copy of the task
	userData any
	life     taskLife
}

// UserData returns what SetUserData stored since the task was allocated.
func (t *Task) UserData() any { return t.userData }

// SetUserData stores a value for the user with the task, until the task is freed.
func (t *Task) SetUserData(v any) { t.userData = v }

// Engine is the engine that drives the task's context, or nil.
func (t *Task) Engine() *Engine { return t.pool.core.Engine() }

// Core is the part of the task's context that all kinds have in common.
func (t *Task) Core() *Core { return t.pool.core }

// String names the task's pool, and whether the task is in flight.
func (t *Task) String() string {
	switch t.life {
	case taskFree:
		return "free task of " + t.pool.object()
	case taskInFlight:
		return "task in flight of " + t.pool.object()
	}
	return "task of " + t.pool.object()
}

// drivenElsewhere reports whether another goroutine is driving the task's engine right
// now.
func (t *Task) drivenElsewhere() bool { return t.pool.core.drivenElsewhere() }

// InFlight reports whether the task is submitted and not completed.
func (t *Task) InFlight() bool { return t.life == taskInFlight }

// unusableError says why Begin, MayChange or Free is not possible.
func (t *Task) unusableError(c *Core, op string) error {
	switch {
	case t.self != t:
		return fmt.Errorf("pe: cannot %s: the task is a copy, which counts as %w; use the pointer that the pool returned", op, ErrFreed)
	case t.life == taskFree:
		return fmt.Errorf("pe: cannot %s: %s: the task was %w", op, t.pool.object(), ErrFreed)
	case t.life == taskInFlight:
		return fmt.Errorf("pe: cannot %s: %s: the task is in flight: %w; wait for its callback", op, t.pool.object(), ErrInUse)
	case t.pool.core != c:
		return fmt.Errorf("pe: cannot %s: the task belongs to %s, not to %s: %w", op, t.pool.object(), c.object(), ErrInvalid)
	}
	return c.require(op, t.pool.legalStates()...)
}
