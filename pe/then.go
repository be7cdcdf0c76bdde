package pe

import (
	"errors"
	"fmt"
)

// Submittable is what tasks of all kinds have in common for those who use them,
// such as *rdma.Task. It is for type parameters.
type Submittable interface {
	comparable // so that a task that is missing can be found
	// Submit gives the task to its context.
	Submit(flags ...SubmitFlags) error
	Free() error       // puts it back into its pool
	InFlight() bool    // see Task.InFlight
	UserData() any     // see Task.UserData
	SetUserData(v any) // see Task.SetUserData
	Engine() *Engine   // see Task.Engine
	Core() *Core       // see Task.Core
}

// then is the user data of a task that has a callback of its own.
type then[T any] func(T, error)

// Done is the callback of success, and Failed the one of failure, for pools whose
// tasks each have a callback of their own, set with Submit or Then:
//
//	writes, err := r.Pool(16, pe.Done, pe.Failed)
//	...
//	err = pe.Submit(task, func(t *rdma.Task, err error) { ... })
//
// A task that was given none remains the user's when it has completed, as always,
// and nothing is called.
func Done[T Submittable](t T) { Failed(t, nil) }

// Failed is the callback of failure that goes with Done.
func Failed[T Submittable](t T, err error) {
	var none T
	if t == none {
		return
	}
	if f, ok := t.UserData().(then[T]); ok && f != nil {
		f(t, err)
	}
}

// Then sets the callback of a task whose pool was made with Done and Failed. It
// is called, on the engine's goroutine, each time that the task has completed,
// with nil or what it failed with, until another is set or the task is freed. It
// is for tasks that are submitted with flags or several at a time; Submit does
// for others. It takes the place of the task's user data, and allocates nothing.
func Then[T Submittable](t T, f func(t T, err error)) {
	var none T
	if t != none {
		t.SetUserData(then[T](f))
	}
}

// Submit submits a task whose pool was made with Done and Failed, and has f called
// when it has completed, as Then does. If it fails, the task remains the
// caller's, and f is not called. Its errors are those of the task's Submit, and
// ErrInvalid without f.
func Submit[T Submittable](t T, f func(t T, err error)) error {
	var none T
	if t == none {
		return fmt.Errorf("pe: cannot submit a task: %w: it is nil", ErrInvalid)
	}
	if f == nil {
		return fmt.Errorf("pe: cannot submit a task with no function to call: %w", ErrInvalid)
	}
	if t.InFlight() {
		return t.Submit() // says why it cannot be, and leaves the callback alone
	}
	Then(t, f)
	return t.Submit()
}

// SubmitNew submits a task that has just been allocated, and frees it if that fails. It
// takes the results of Alloc as they are, and returns its error, or that of Submit.
//
//	task, err := writes.Write(conn, src, dst)
//	r.Fail(pe.SubmitNew(task, err))
//
// So it does with a task that was prepared to be submitted once more: one that could not
// be is freed.
//
//	r.Fail(pe.SubmitNew(task, task.SetDestination(dst)))
//
// In a pool made with Done and Failed the task gets a callback of its own, as with Submit:
//
//	r.Fail(pe.SubmitNew(task, err, written))
//
// It is not called when SubmitNew has failed. nil counts as none; more than one is an
// error that matches ErrInvalid.
func SubmitNew[T Submittable](t T, err error, f ...func(t T, err error)) error {
	var none T
	switch {
	case t == none && err != nil:
		return err
	case t == none:
		return fmt.Errorf("pe: cannot submit a task: %w: it is nil", ErrInvalid)
	case err != nil:
	case len(f) > 1:
		err = fmt.Errorf("pe: cannot submit a task with %d functions to call: %w; give it one", len(f), ErrInvalid)
	case len(f) == 0 || f[0] == nil:
		err = t.Submit()
	default:
		err = Submit(t, f[0])
	}
	if err != nil && !t.InFlight() {
		err = errors.Join(err, t.Free())
	}
	return err
}
