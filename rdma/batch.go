package rdma

import (
	"fmt"

	"github.com/verbena-rdma/verbena/pe"
)

// submittable is a task of this package.
type submittable interface {
	*Task | *ReceiveTask
	Free() error
	submit(flags pe.SubmitFlags, thorough bool) error
}

// errNilTask is the error for a nil task, such as the result of an Alloc that failed.
var errNilTask = fmt.Errorf("rdma: use a task: %w: the task is nil; check the error of Alloc", ErrInvalid)

// SubmitAll submits tasks of any operations, or receives, and gives them to the device
// together. With pe.Aggregate in flags, all of them wait. SubmitAll stops at the first that
// cannot be submitted. It returns how many were submitted before, which stay so, and the error
// (ErrInvalid for a task that is nil). It allocates nothing.
func SubmitAll[T submittable](tasks []T, flags pe.SubmitFlags) (int, error) {
	for i, t := range tasks {
		f := flags | pe.Aggregate
		if i == len(tasks)-1 {
			f = flags
		}
		if t == nil {
			return i, errNilTask
		}
		if err := t.submit(f, false); err != nil {
			return i, err
		}
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
