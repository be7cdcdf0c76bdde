package graph

import (
	"fmt"

	"github.com/verbena-rdma/verbena/pe"
)

// Instance is one run of a graph. It is a task: it is allocated, submitted,
// submitted again, and freed like any other, and belongs to the goroutine that
// drives the engine. It can be a node of another graph.
type Instance[V any] struct {
	pe.Task
	control *pe.Control
	pool    *Pool[V]
	value   V

	// By node.
	steps  []step
	states []nodeState
	needs  []int // how many of those that it depends on have not succeeded

	left   int // nodes that have neither ended nor been skipped
	failed []*NodeError
	cut    bool // the graph was stopped before all nodes were begun
}

type nodeState uint8

const (
	pending nodeState = iota
	begun
	waiting // for a task
	ended
	skipped
)

// Submit runs the graph on the instance's value. From here to the callback the
// value is the nodes'. If Submit fails, the instance remains the caller's. It
// allocates nothing. Errors are those of pe.Task.Begin.
func (i *Instance[V]) Submit() error {
	if err := i.control.Begin(&i.Task, "submit an instance"); err != nil {
		return err
	}
	g := i.pool.graph
	g.running++
	i.failed, i.cut = nil, false
	i.left = len(g.nodes)
	for j, n := range g.nodes {
		i.states[j], i.needs[j] = pending, n.needs
		if n.needs == 0 {
			g.enqueue(i, j)
		}
	}
	return nil
}

// Free puts the instance back into its pool. It is legal whenever the instance is
// not in flight. Errors are those of pe.Pool.Free.
func (i *Instance[V]) Free() error {
	if i.pool == nil {
		return fmt.Errorf("graph: free an instance: %w: it came from no pool", ErrInvalid)
	}
	if err := i.pool.tasks.Free(i); err != nil {
		return err
	}
	i.drop()
	return nil
}

// drop lets go of what an instance that was freed has worked on.
func (i *Instance[V]) drop() {
	var none V
	i.value = none
}

// Value is what the instance works on.
func (i *Instance[V]) Value() V { return i.value }

// SetValue sets what the next run works on. Errors are those of pe.Task.MayChange.
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
	i.steps[index].run()
}

// wait takes note of a node that waits for a task, unless the function that was to
// allocate it has stopped the graph.
func (i *Instance[V]) wait(index int) {
	i.states[index] = waiting
	if i.pool.graph.stopping {
		i.flush()
	}
}

// finish takes note of the end of a node.
func (i *Instance[V]) finish(index int, err error) {
	if i.states[index] != begun {
		return
	}
	g := i.pool.graph
	n := g.nodes[index]
	i.states[index] = ended
	i.left--
	if err != nil {
		i.failed = append(i.failed, &NodeError{n.name, err})
	}
	for _, j := range n.after {
		switch {
		case i.states[j] != pending:
		case err != nil:
			i.skip(j)
		default:
			if i.needs[j]--; i.needs[j] == 0 {
				g.enqueue(i, j)
			}
		}
	}
	i.settle()
}

// skip leaves out a node, and what depends on it.
func (i *Instance[V]) skip(index int) {
	if i.states[index] != pending {
		return
	}
	i.states[index] = skipped
	i.left--
	for _, j := range i.pool.graph.nodes[index].after {
		i.skip(j)
	}
}

// flush leaves out all nodes that have not been begun.
func (i *Instance[V]) flush() {
	if !i.InFlight() || i.left == 0 {
		return
	}
	for j := range i.states {
		if i.states[j] == waiting {
			i.steps[j].leave()
			i.states[j] = pending
		}
		if i.states[j] == pending {
			i.cut = true
			i.skip(j)
		}
	}
	i.settle()
}

// settle has the callback run when all nodes have ended or been skipped.
func (i *Instance[V]) settle() {
	if i.left == 0 {
		i.pool.graph.ended.Push(i)
		i.control.Wake()
	}
}

// report runs the callback.
func (i *Instance[V]) report() {
	i.pool.graph.running--
	i.control.End(&i.Task)
	if len(i.failed) == 0 && !i.cut {
		i.pool.done(i)
		return
	}
	i.pool.failed(i, i.err())
}

func (i *Instance[V]) err() *RunError {
	g := i.pool.graph
	e := &RunError{Graph: g.name, Failed: i.failed, Stopped: i.cut}
	for j, s := range i.states {
		if s == skipped {
			e.NotRun = append(e.NotRun, g.nodes[j].name)
		}
	}
	return e
}
