package graph

import (
	"fmt"

	"github.com/verbena-rdma/verbena/pe"
)

// step runs one node of one instance. It is made with the instance, so that
// running it allocates nothing.
type step interface {
	// run begins the node. Instance.finish is called when the node has ended.
	run()
	// cancelWait ends a node's wait for a task.
	cancelWait()
}

// errPanicked is the result of a function until it returns.
var errPanicked = fmt.Errorf("%w, or ended its goroutine", ErrPanicked)

// funcNode is a node that is a function.
type funcNode[V any] struct{ f func(V) error }

type funcStep[V any] struct {
	funcNode[V]
	inst  *Instance[V]
	index int
}

func (c funcNode[V]) make(i *Instance[V], index int) step { return &funcStep[V]{c, i, index} }

func (s *funcStep[V]) run() {
	err := errPanicked
	defer func() { s.inst.finish(s.index, err) }()
	err = s.f(s.inst.value)
}

func (s *funcStep[V]) cancelWait() {}

// taskNode is a node that is a task.
type taskNode[V any, T pe.Submittable] struct {
	alloc   func(V) (T, error)
	collect func(V, T) error
}

type taskStep[V any, T pe.Submittable] struct {
	*taskNode[V, T]
	inst   *Instance[V]
	index  int
	waiter *pe.Waiter
	ended  func(T, error)
}

func (k *taskNode[V, T]) make(i *Instance[V], index int) step {
	s := &taskStep[V, T]{taskNode: k, inst: i, index: index}
	s.waiter = pe.NewWaiter(s.retry)
	s.ended = s.completed
	return s
}

func (s *taskStep[V, T]) run() {
	err, pending := errPanicked, false
	defer func() {
		if !pending {
			s.inst.finish(s.index, err)
		}
	}()
	var t T
	if t, err = s.alloc(s.inst.value); err != nil {
		if pending = s.waiter.Wait(err); pending {
			s.inst.wait(s.index)
		}
		return
	}
	if err = s.check(t); err != nil {
		return
	}
	if err = pe.SubmitOrFree(t, nil, s.ended); err != nil {
		return
	}
	pending = true
}

// check refuses a task that would never come back to this engine. It does not free a task of
// another engine, which belongs to another goroutine.
func (s *taskStep[V, T]) check(t T) error {
	var none T
	if t == none {
		return fmt.Errorf("%w: alloc returned neither a task nor an error", ErrInvalid)
	}
	if t.Engine() != s.inst.pool.graph.Engine() {
		return fmt.Errorf("%w: the context of the task is not connected to the engine of the graph; the task remains allocated", ErrEngine)
	}
	return nil
}

// retry runs the node when the exhausted pool has a task again.
func (s *taskStep[V, T]) retry() {
	s.inst.states[s.index] = begun
	s.run()
}

func (s *taskStep[V, T]) cancelWait() { s.waiter.Leave() }

// completed ends the node when its task has.
func (s *taskStep[V, T]) completed(t T, err error) {
	pe.Then(t, nil)
	defer func() {
		if e := t.Free(); err == nil {
			err = e
		}
		s.inst.finish(s.index, err)
	}()
	if err == nil && s.collect != nil {
		err = errPanicked
		err = s.collect(s.inst.value, t)
	}
}
