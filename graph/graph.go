package graph

import (
	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/pe/backend"
)

// Graph is a context that runs instances of one graph. An engine drives it (package pe). It is
// Running as soon as it is started.
type Graph[V any] struct {
	*pe.Core
	control backend.Control
	name    string
	nodes   []*node[V]
	pools   []*Pool[V]

	ready    fifo.Queue[nodeRef[V]] // nodes to be run
	ended    fifo.Queue[*Instance[V]]
	running  int  // instances
	stopping bool // Stop was called, and Stopped not yet
}

// nodeRef is a node of an instance.
type nodeRef[V any] struct {
	inst  *Instance[V]
	index int
}

func newGraph[V any](name string, nodes []*node[V]) *Graph[V] {
	g := &Graph[V]{name: name, nodes: nodes}
	g.Core, g.control = backend.New(name, asBackend[V]{g})
	return g
}

// progressBudget bounds the nodes that one Progress runs, so that other contexts are
// served too.
const progressBudget = 128

// asBackend keeps the methods that the engine calls apart from those of the Core.
type asBackend[V any] struct{ g *Graph[V] }

func (b asBackend[V]) Start() (bool, error) {
	b.g.stopping = false
	return true, nil
}

func (b asBackend[V]) Progress() int {
	g, n := b.g, 0
	// A function may stop the graph; Stop follows when Progress has returned.
	for ; n < progressBudget && g.ready.Len() > 0 && g.State() == pe.Running; n++ {
		r := g.ready.Pop()
		r.inst.run(r.index)
	}
	for range g.ended.Len() {
		n++
		g.ended.Pop().report()
	}
	b.reportStopped()
	return n
}

func (b asBackend[V]) Arm() bool {
	g := b.g
	return g.ready.Len() == 0 && g.ended.Len() == 0 && !(g.stopping && g.running == 0)
}

func (b asBackend[V]) Stop() {
	g := b.g
	g.stopping = true
	g.ready.Clear()
	for _, p := range g.pools {
		for _, i := range p.all {
			i.flush()
		}
	}
	g.control.Wake()
	b.reportStopped()
}

func (b asBackend[V]) Idle() {}

// reportStopped calls Control.Stopped when a graph that is stopping has no instance running.
func (b asBackend[V]) reportStopped() {
	if b.g.stopping && b.g.running == 0 {
		b.g.stopping = false // Idle follows when the instances have been freed
		b.g.control.Stopped()
	}
}

// enqueue queues a node for the next Progress.
func (g *Graph[V]) enqueue(i *Instance[V], index int) {
	g.ready.Push(nodeRef[V]{i, index})
	g.control.Wake()
}
