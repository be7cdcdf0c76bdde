package rdma

import (
	"fmt"
	"reflect"

	"github.com/verbena-rdma/verbena/pe"
)

// Task is a task of any kind of this package. The types of tasks say more about the
// methods, such as WriteTask.
type Task interface {
	Submit() error                         // gives the task to the device
	SubmitWith(flags pe.SubmitFlags) error // the same with flags
	TrySubmit() error                      // the same after all checks
	Free() error                           // puts the task back into its pool
	InFlight() bool                        // submitted, and not completed
	UserData() any                         // see pe.Task.UserData
	SetUserData(v any)                     // see pe.Task.SetUserData
	Operation() Operation                  // the task's kind
	Connection() *Connection               // the one it runs on; of a receive, the one the message came from; or nil
	Peer() *Peer                           // the one it goes to; of a receive, the one the message came from; or nil

	submit(flags pe.SubmitFlags, thorough bool) error
}

// errNilTask is the error of a task that is missing, such as one that Alloc did not
// return because it failed.
var errNilTask = fmt.Errorf("rdma: use a task: %w: it is nil; check the error of Alloc", ErrInvalid)

// absent reports whether a task is nil, as an interface or as a pointer.
func absent[T Task](t T) bool {
	var none T
	if any(none) == nil { // T is an interface
		return any(t) == nil || reflect.ValueOf(t).IsNil()
	}
	return any(t) == any(none)
}

// SubmitAll submits tasks, of one kind or, as a []Task, of several, and gives them
// to the device together; with pe.Aggregate in flags even the last waits. It stops
// at the first that cannot be submitted, and returns how many were, with the error
// of that one (ErrInvalid for a task that is nil); those stay submitted. It allocates
// nothing.
func SubmitAll[T Task](tasks []T, flags pe.SubmitFlags) (int, error) {
	return submitAll(tasks, flags, false)
}

// TrySubmitAll is SubmitAll with the checks of TrySubmit.
func TrySubmitAll[T Task](tasks []T, flags pe.SubmitFlags) (int, error) {
	return submitAll(tasks, flags, true)
}

func submitAll[T Task](tasks []T, flags pe.SubmitFlags, thorough bool) (int, error) {
	for i, t := range tasks {
		f := flags | pe.Aggregate
		if i == len(tasks)-1 {
			f = flags
		}
		if absent(t) {
			return i, errNilTask
		}
		if err := t.submit(f, thorough); err != nil {
			return i, err
		}
	}
	return len(tasks), nil
}

// FreeAll frees tasks. It goes on after a failure, and returns the first error.
func FreeAll[T Task](tasks []T) error {
	var first error
	for _, t := range tasks {
		err := errNilTask
		if !absent(t) {
			err = t.Free()
		}
		if err != nil && first == nil {
			first = err
		}
	}
	return first
}
