package pe

import (
	"errors"
	"fmt"
)

// Submittable is the method set that users need of every kind of task, such as *rdma.Task. It
// is for type parameters.
type Submittable interface {
	comparable // to detect a nil task
	// Submit gives the task to its context.
	Submit(flags ...SubmitFlags) error
	Free() error       // puts it back into its pool
	InFlight() bool    // see Task.InFlight
	UserData() any     // see Task.UserData
	SetUserData(v any) // see Task.SetUserData
	Engine() *Engine   // see Task.Engine
	Core() *Core       // see Task.Core
}

// taskCallback is the user data of a task with its own callback.
type taskCallback[T any] func(T, error)

// TaskDone is the callback of success, and TaskFailed the one of failure, for pools whose tasks each
// have their own callback, set with SubmitOrFree or Then:
//
//	writes, err := r.Pool(16, pe.TaskDone, pe.TaskFailed)
//	...
//	task, err := writes.Write(conn, src, dst)
//	err = pe.SubmitOrFree(task, err, func(t *rdma.Task, err error) { ... })
//
// If a task without a callback completes, nothing is called, and the task is the user's again.
func TaskDone[T Submittable](t T) { TaskFailed(t, nil) }

// TaskFailed is the callback of failure that goes with TaskDone.
func TaskFailed[T Submittable](t T, err error) {
	if f, ok := t.UserData().(taskCallback[T]); ok && f != nil {
		f(t, err)
	}
}

// Then sets the callback of a task whose pool was made with TaskDone and TaskFailed. The engine's
// goroutine calls it each time the task completes, with nil or the error, until another is set
// or the task is freed. Use it for tasks that are submitted with flags or several at a time,
// and SubmitOrFree for others. It replaces the task's user data, and allocates nothing.
func Then[T Submittable](t T, f func(t T, err error)) {
	var none T
	if t != none {
		t.SetUserData(taskCallback[T](f))
	}
}

// SubmitOrFree submits a task, and frees it if that fails. It takes the results of an allocation as
// they are, and returns the error of the allocation or of Submit.
//
//	task, err := writes.Write(conn, src, dst)
//	r.Fail(pe.SubmitOrFree(task, err))
//
// It also submits a task again after a change, and frees it if either fails.
//
//	r.Fail(pe.SubmitOrFree(task, task.SetDestination(dst)))
//
// In a pool made with TaskDone and TaskFailed, a third argument sets the task's callback, as Then
// does:
//
//	r.Fail(pe.SubmitOrFree(task, err, written))
//
// The callback is not called when SubmitOrFree fails. A nil callback counts as none; more than
// one is an error that matches ErrInvalid.
func SubmitOrFree[T Submittable](t T, err error, f ...func(t T, err error)) error {
	var none T
	switch {
	case t == none && err != nil:
		return err
	case t == none:
		return fmt.Errorf("pe: cannot submit a task: %w: it is nil", ErrInvalid)
	case err != nil:
	case len(f) > 1:
		err = fmt.Errorf("pe: cannot submit a task with %d callbacks: %w; give at most one", len(f), ErrInvalid)
	case len(f) == 0 || f[0] == nil:
		err = t.Submit()
	default:
		if !t.InFlight() { // if it is, the callback is kept, and Submit returns the error
			Then(t, f[0])
		}
		err = t.Submit()
	}
	if err != nil && !t.InFlight() {
		err = errors.Join(err, t.Free())
	}
	return err
}
