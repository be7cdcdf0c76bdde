package graph

import (
	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/internal/profiling"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/pe/backend"
)

// Instance is one run of a graph. It is a task like any other: it is allocated, submitted,
// submitted again, and freed, and belongs to the goroutine that drives the engine. It can be a
// node of another graph.
type Instance[V any] struct {
	pe.Task
	control backend.Control
	pool    *Pool[V]
	value   V

	// Indexed by node.
	steps      []step
	states     []nodeState
	waitingFor []int // number of its dependencies that have not succeeded

	remaining    int // nodes that have neither ended nor been skipped
	failed       []*NodeError
	stoppedEarly bool // the graph was stopped before all nodes were begun
}

type nodeState uint8

const (
	pending nodeState = iota
	begun
	waiting // for a task
	ended
	skipped
)

// Submit runs the graph on the instance's value, in Progress. Until the callback, the value
// belongs to the nodes. Submit allocates nothing. It fails if the graph is not Running
// (*pe.StateError), or the instance is in flight (pe.ErrInUse) or not allocated (pe.ErrFreed);
// then the instance remains the caller's.
func (i *Instance[V]) Submit(_ ...pe.SubmitFlags) error {
	if err := i.control.Begin(&i.Task, "submit an instance"); err != nil {
		return err
	}
	g := i.pool.graph
	g.running++
	i.failed, i.stoppedEarly = nil, false
	i.remaining = len(g.nodes)
	for j, n := range g.nodes {
		i.states[j], i.waitingFor[j] = pending, n.dependencies
		if n.dependencies == 0 {
			g.enqueue(i, j)
		}
	}
	return nil
}

// Free puts the instance back into its pool. It is legal whenever the instance is
// not in flight. Errors are those of pe.Pool.Free.
func (i *Instance[V]) Free() error {
	if err := i.pool.tasks.Free(i); err != nil {
		return err
	}
	i.clearValue()
	return nil
}

// clearValue drops the value of an instance that was freed.
func (i *Instance[V]) clearValue() {
	var none V
	i.value = none
}

// Value is the value of the instance.
func (i *Instance[V]) Value() V { return i.value }

// SetValue sets the value for the next run. It fails with pe.ErrInUse while the instance is in
// flight, and with pe.ErrFreed.
func (i *Instance[V]) SetValue(value V) error {
	if err := i.control.MayChange(&i.Task, "value"); err != nil {
		return err
	}
	i.value = value
	return nil
}

// run begins a node.
func (i *Instance[V]) run(index int) {
	i.states[index] = begun
	if profiling.Tracing() {
		i.pool.graph.Friends(friend.Package{}).Traced("verbena graph node", i.steps[index].run)
		return
	}
	i.steps[index].run()
}

// wait records that a node waits for a task, unless its alloc function has stopped the graph.
func (i *Instance[V]) wait(index int) {
	i.states[index] = waiting
	if i.pool.graph.stopping {
		i.flush()
	}
}

// finish records the end of a node, and enqueues the nodes whose last dependency it was.
func (i *Instance[V]) finish(index int, err error) {
	if i.states[index] != begun {
		return
	}
	g := i.pool.graph
	n := g.nodes[index]
	i.states[index] = ended
	i.remaining--
	if err != nil {
		i.failed = append(i.failed, &NodeError{n.name, err})
	}
	for _, j := range n.successors {
		switch {
		case i.states[j] != pending:
		case err != nil:
			i.skip(j)
		default:
			if i.waitingFor[j]--; i.waitingFor[j] == 0 {
				g.enqueue(i, j)
			}
		}
	}
	i.reportIfEnded()
}

// skip marks a node, and the nodes that depend on it, as not run.
func (i *Instance[V]) skip(index int) {
	if i.states[index] != pending {
		return
	}
	i.states[index] = skipped
	i.remaining--
	for _, j := range i.pool.graph.nodes[index].successors {
		i.skip(j)
	}
}

// flush skips all nodes that have not been begun.
func (i *Instance[V]) flush() {
	if !i.InFlight() || i.remaining == 0 {
		return
	}
	for j := range i.states {
		if i.states[j] == waiting {
			i.steps[j].cancelWait()
			i.states[j] = pending
		}
		if i.states[j] == pending {
			i.stoppedEarly = true
			i.skip(j)
		}
	}
	i.reportIfEnded()
}

// reportIfEnded queues the callback once all nodes have ended or been skipped.
func (i *Instance[V]) reportIfEnded() {
	if i.remaining == 0 {
		i.pool.graph.ended.Push(i)
		i.control.Wake()
	}
}

// report runs the callback.
func (i *Instance[V]) report() {
	i.pool.graph.running--
	i.control.End(&i.Task)
	if profiling.Tracing() {
		i.pool.graph.Friends(friend.Package{}).Traced("verbena task callback", i.call)
		return
	}
	i.call()
}

func (i *Instance[V]) call() {
	if len(i.failed) == 0 && !i.stoppedEarly {
		i.pool.done(i)
		return
	}
	i.pool.failed(i, i.err())
}

func (i *Instance[V]) err() *RunError {
	g := i.pool.graph
	e := &RunError{Graph: g.name, Failed: i.failed, Stopped: i.stoppedEarly}
	if e.Stopped {
		e.Cause = g.Err()
	}
	for j, s := range i.states {
		if s == skipped {
			e.NotRun = append(e.NotRun, g.nodes[j].name)
		}
	}
	return e
}
