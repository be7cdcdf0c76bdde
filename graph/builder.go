package graph

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/verbena-rdma/verbena/pe"
)

// Builder collects the nodes and edges of a graph. Each instance of the graph works on a value
// of type V, which the functions of its nodes are given. Build reports all mistakes, so the
// calls before it return no error. A builder belongs to one goroutine at a time.
type Builder[V any] struct {
	name  string
	nodes []*node[V]
	errs  []error
	built bool // Build was called
}

// Node is a node of a graph that is being built, for Builder.Edge.
type Node struct {
	builder any
	index   int
}

// node is a node of a graph: its step, and its edges.
type node[V any] struct {
	name         string
	step         stepMaker[V]
	successors   []int // nodes that depend on it
	dependencies int   // number of nodes it depends on
}

// stepMaker makes the part of an instance that runs one node. Each kind of node has its own.
type stepMaker[V any] interface {
	make(i *Instance[V], index int) step
}

// NewBuilder begins a graph. Its name appears in errors and logs.
func NewBuilder[V any](name string) *Builder[V] { return &Builder[V]{name: name} }

// Func adds a node that runs a function, on the engine's goroutine. The function
// should not block, since it delays every context of the engine. If it fails or
// panics, the nodes that depend on it are not run. Names appear in errors, and must
// differ.
func (b *Builder[V]) Func(name string, f func(V) error) *Node {
	if f == nil {
		b.addError("node %q has no function", name)
	}
	return b.add(name, funcNode[V]{f})
}

// Task adds a node that runs a task of any context on the graph's engine. The task's pool must
// have been made with pe.TaskDone and pe.TaskFailed.
//
// When the nodes that it depends on have succeeded, the graph calls alloc and submits the task
// that alloc returns. When the task has succeeded, the graph calls collect, if it is not nil,
// to take results out of the task and check them. Then the task is freed with its buffers,
// also if it failed. Both functions run on the engine's goroutine, and should not block. If
// one of them fails or panics, the node has failed.
//
// If alloc fails because the pool is exhausted (pe.ErrExhausted), the graph calls it again
// when a task of the pool has been freed. Nodes that wait for one pool get its tasks in the
// order in which they asked. An allocation that fails has freed the buffers it was given, so
// alloc must make them each time.
func Task[V any, T pe.Submittable](b *Builder[V], name string, alloc func(V) (T, error), collect func(V, T) error) *Node {
	if alloc == nil {
		b.addError("node %q has no function that allocates its task", name)
	}
	return b.add(name, &taskNode[V, T]{alloc, collect})
}

func (b *Builder[V]) add(name string, step stepMaker[V]) *Node {
	named := func(n *node[V]) bool { return n.name == name }
	switch {
	case b.built:
		b.addError("node %q comes after Build", name)
	case name == "":
		b.addError("node %d has no name", len(b.nodes)+1)
	case slices.ContainsFunc(b.nodes, named):
		b.addError("two nodes are named %q", name)
	}
	b.nodes = append(b.nodes, &node[V]{name: name, step: step})
	return &Node{b, len(b.nodes) - 1}
}

// Edge makes one node depend on another: to runs when from has succeeded.
func (b *Builder[V]) Edge(from, to *Node) {
	for _, n := range []*Node{from, to} {
		if n == nil || n.builder != any(b) {
			b.addError("the edge from %s to %s has a node that is not of this graph", b.nameOf(from), b.nameOf(to))
			return
		}
	}
	first := b.nodes[from.index]
	switch {
	case b.built:
		b.addError("the edge from %s to %s comes after Build", b.nameOf(from), b.nameOf(to))
	case from.index == to.index:
		b.addError("node %s has an edge to itself", b.nameOf(from))
	case slices.Contains(first.successors, to.index):
		b.addError("there are two edges from %s to %s", b.nameOf(from), b.nameOf(to))
	default:
		first.successors = append(first.successors, to.index)
		b.nodes[to.index].dependencies++
	}
}

// Chain makes each of the nodes depend on the one before it.
func (b *Builder[V]) Chain(nodes ...*Node) {
	for i := 1; i < len(nodes); i++ {
		b.Edge(nodes[i-1], nodes[i])
	}
}

// nameOf names a node in errors.
func (b *Builder[V]) nameOf(n *Node) string {
	switch {
	case n == nil:
		return "nil"
	case n.builder != any(b):
		return "a node of another graph"
	}
	return strconv.Quote(b.nodes[n.index].name)
}

func (b *Builder[V]) addError(format string, args ...any) {
	b.errs = append(b.errs, fmt.Errorf("graph: build %q: %w: "+format, append([]any{b.name, ErrInvalid}, args...)...))
}

// Build makes the graph: a context, to be connected to an engine. The builder cannot be used
// afterwards. Build reports all mistakes at once, joined: each matches ErrInvalid, or is a
// *CycleError.
func (b *Builder[V]) Build() (*Graph[V], error) {
	if len(b.nodes) == 0 {
		b.addError("it has no nodes")
	}
	if b.built {
		b.addError("it was built before; make another builder")
	}
	b.built = true
	if cycle := b.cycle(); cycle != nil {
		b.errs = append(b.errs, &CycleError{b.name, cycle})
	}
	if len(b.errs) > 0 {
		return nil, errors.Join(b.errs...)
	}
	return newGraph(b.name, b.nodes), nil
}

// cycle returns the names of the nodes on a cycle, if there is one.
func (b *Builder[V]) cycle() []string {
	// Remove nodes that no remaining node depends on. Each node left at the end has a
	// successor that is left too, so following successors leads to a cycle.
	before := make([][]int, len(b.nodes))
	left := make([]int, len(b.nodes)) // successors; -1: removed
	var free []int
	for i, n := range b.nodes {
		left[i] = len(n.successors)
		if left[i] == 0 {
			free = append(free, i)
		}
		for _, j := range n.successors {
			before[j] = append(before[j], i)
		}
	}
	for len(free) > 0 {
		i := free[len(free)-1]
		free = free[:len(free)-1]
		left[i] = -1
		for _, j := range before[i] {
			if left[j]--; left[j] == 0 {
				free = append(free, j)
			}
		}
	}
	remains := func(i int) bool { return left[i] > 0 }
	var path []int
	for i := slices.IndexFunc(left, func(n int) bool { return n > 0 }); i >= 0; {
		if start := slices.Index(path, i); start >= 0 {
			return b.names(path[start:])
		}
		path = append(path, i)
		after := b.nodes[i].successors
		i = after[slices.IndexFunc(after, remains)]
	}
	return nil
}

func (b *Builder[V]) names(list []int) []string {
	var names []string
	for _, i := range list {
		names = append(names, b.nodes[i].name)
	}
	return names
}
