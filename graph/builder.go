package graph

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/verbena-rdma/verbena/pe"
)

// Builder collects the nodes and edges of a graph whose instances each work on a
// value of type V: what the functions of the nodes are given. What is wrong shows
// in Build, so that the calls before it can be written one after the other.
type Builder[V any] struct {
	name  string
	nodes []*node[V]
	errs  []error
	spent bool // built
}

// Node is a node of a graph that is being built, for Builder.Edge.
type Node struct {
	builder any
	index   int
}

// node is a node of a graph.
type node[V any] struct {
	name  string
	step  stepMaker[V]
	after []int // those that depend on it
	needs int   // how many it depends on
}

// stepMaker is what distinguishes kinds of nodes: it makes the part of an instance
// that runs one.
type stepMaker[V any] interface {
	make(i *Instance[V], index int) step
}

// NewBuilder begins a graph. Its name appears in errors and logs.
func NewBuilder[V any](name string) *Builder[V] { return &Builder[V]{name: name} }

// Func adds a node that runs a function, on the engine's goroutine. It should not
// block, since everything waits for it. If it fails, or panics, what depends on
// the node is not run. Names are for errors, and each is to be used once.
func (b *Builder[V]) Func(name string, f func(V) error) *Node {
	if f == nil {
		b.complain("node %q has no function", name)
	}
	return b.add(name, call[V]{f})
}

// Task adds a node that runs a task of any context on the graph's engine. The
// task's pool is to be made with pe.Done and pe.Failed.
//
// When the nodes that it depends on have succeeded, alloc is called, and the task
// it returns is submitted. When that has succeeded, collect is called if it is not
// nil: to take results out of the task, and to judge them. Then the task is freed,
// and with it its buffers, in any case. Both functions run on the engine's
// goroutine; if one of them fails, or panics, the node has failed.
//
// If alloc fails because the pool is exhausted (pe.ErrExhausted), it is called
// again when a task of the pool has been freed, by whomever: nodes that wait for
// one pool get its tasks in the order in which they asked. As allocation frees the
// buffers it was given even if it fails, alloc has to make them each time.
func Task[V any, T pe.Submittable](b *Builder[V], name string, alloc func(V) (T, error), collect func(V, T) error) *Node {
	if alloc == nil {
		b.complain("node %q has no function that allocates its task", name)
	}
	return b.add(name, &taskKind[V, T]{alloc, collect})
}

func (b *Builder[V]) add(name string, step stepMaker[V]) *Node {
	named := func(n *node[V]) bool { return n.name == name }
	switch {
	case b.spent:
		b.complain("node %q comes after Build", name)
	case name == "":
		b.complain("node %d has no name", len(b.nodes)+1)
	case slices.ContainsFunc(b.nodes, named):
		b.complain("two nodes are named %q", name)
	}
	b.nodes = append(b.nodes, &node[V]{name: name, step: step})
	return &Node{b, len(b.nodes) - 1}
}

// Edge has the node to depend on the node from: it is run when from has succeeded.
func (b *Builder[V]) Edge(from, to *Node) {
	for _, n := range []*Node{from, to} {
		if n == nil || n.builder != any(b) {
			b.complain("the edge from %s to %s has a node that is not of this graph", b.nameOf(from), b.nameOf(to))
			return
		}
	}
	first := b.nodes[from.index]
	switch {
	case b.spent:
		b.complain("the edge from %s to %s comes after Build", b.nameOf(from), b.nameOf(to))
	case from.index == to.index:
		b.complain("node %s has an edge to itself", b.nameOf(from))
	case slices.Contains(first.after, to.index):
		b.complain("there are two edges from %s to %s", b.nameOf(from), b.nameOf(to))
	default:
		first.after = append(first.after, to.index)
		b.nodes[to.index].needs++
	}
}

// Chain has each of the nodes depend on the one before it.
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

func (b *Builder[V]) complain(format string, args ...any) {
	b.errs = append(b.errs, fmt.Errorf("graph: build %q: %w: "+format, append([]any{b.name, ErrInvalid}, args...)...))
}

// Build makes the graph: a context, to be connected to an engine. The builder
// cannot be used any more. All that is wrong is reported at once: errors match
// ErrInvalid, or are a *CycleError.
func (b *Builder[V]) Build() (*Graph[V], error) {
	if len(b.nodes) == 0 {
		b.complain("it has no nodes")
	}
	if b.spent {
		b.complain("it was built before; make another builder")
	}
	b.spent = true
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
	// Take away nodes that nothing left depends on; what remains in the end has
	// a successor that remains too, so that following them comes round.
	before := make([][]int, len(b.nodes))
	left := make([]int, len(b.nodes)) // successors, or -1: taken away
	var free []int
	for i, n := range b.nodes {
		left[i] = len(n.after)
		if left[i] == 0 {
			free = append(free, i)
		}
		for _, j := range n.after {
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
		after := b.nodes[i].after
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
