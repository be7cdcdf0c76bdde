package rdma

import (
	"fmt"

	"github.com/verbena-rdma/verbena/pe"
)

// submittable is a task of this package.
type submittable interface {
	*Task | *ReceiveTask
	Free() error
	// enqueue makes the task wait for its context to post it.
	enqueue(flags pe.SubmitFlags, thorough bool) error
	context() *parts
}

// errNilTask is the error for a nil task, such as the result of an Alloc that failed.
var errNilTask = fmt.Errorf("rdma: use a task: %w: the task is nil; check the error of Alloc", ErrInvalid)

// SubmitAll submits tasks of any operations, or receives, and gives them to the device
// together. With pe.Aggregate in flags, all of them wait. SubmitAll stops at the first that
// cannot be submitted. It returns how many were submitted before, which stay so, and the error
// (ErrInvalid for a task that is nil). It allocates nothing.
func SubmitAll[T submittable](tasks []T, flags pe.SubmitFlags) (int, error) {
	var c *parts // of the tasks before
	for i, t := range tasks {
		err := errNilTask
		if t != nil {
			err = t.enqueue(flags, false)
		}
		if err != nil {
			if c != nil {
				c.postLater()
			}
			return i, err
		}
		if of := t.context(); of != c {
			if c != nil {
				c.postLater()
			}
			c = of
		}
	}
	if c != nil {
		c.submitted(flags)
	}
	return len(tasks), nil
}

// FreeAll frees tasks. It goes on after a failure, and returns the first error.
func FreeAll[T submittable](tasks []T) error {
	var first error
	for _, t := range tasks {
		err := errNilTask
		if t != nil {
			err = t.Free()
		}
		if err != nil && first == nil {
			first = err
		}
	}
	return first
}
