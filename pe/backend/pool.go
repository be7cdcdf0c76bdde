package backend

import (
	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/pe"
)

// NewPool makes a pool of n tasks for a context that is Idle. The name appears in errors. taskOf returns
// the Task embedded in a T. init prepares each T once, when it is made: the first 1,024 in NewPool,
// others in the call of Alloc that needs them. drop is called, on the engine's goroutine, for a task that
// Close takes back because its user has not freed it: it releases what the task holds, such as buffers.
// init and drop may be nil.
//
// It fails with a *pe.StateError, pe.ErrClosed, or pe.ErrInvalid when n is not 1 to pe.MaxTasks or
// taskOf does not return a Task of the T it was given.
func NewPool[T any](k Control, name string, n int, taskOf func(*T) *pe.Task, init, drop func(*T)) (*pe.Pool[T], error) {
	return newPool(k, name, n, taskOf, init, drop, pe.Idle)
}

// AddPool is NewPool for a context that is Idle, Starting or Running. The context's backend makes room
// for the tasks, or has them wait for it.
func AddPool[T any](k Control, name string, n int, taskOf func(*T) *pe.Task, init, drop func(*T)) (*pe.Pool[T], error) {
	return newPool(k, name, n, taskOf, init, drop, pe.Idle, pe.Starting, pe.Running)
}

func newPool[T any](k Control, name string, n int, taskOf func(*T) *pe.Task, init, drop func(*T), legal ...pe.State) (*pe.Pool[T], error) {
	p := new(pe.Pool[T])
	if err := p.Friends(friend.Package{}).Make(k.core, name, n, taskOf, init, drop, legal...); err != nil {
		return nil, err
	}
	return p, nil
}

// AllowStarting lets tasks of the pool be allocated and submitted in Starting too. Use it for tasks that
// need no peer, such as receives; the backend must take them in that state.
func AllowStarting[T any](p *pe.Pool[T]) { p.Friends(friend.Package{}).AllowStarting() }

// JoinFlags combines the flags of a list, for the method Submit of tasks.
func JoinFlags(flags []pe.SubmitFlags) (all pe.SubmitFlags) {
	for _, f := range flags {
		all |= f
	}
	return all
}
