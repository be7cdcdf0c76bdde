package graph

import (
	"fmt"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/pe/backend"
)

// Pool is a pool of instances of one graph. All of them can run at the same time.
type Pool[V any] struct {
	graph  *Graph[V]
	tasks  *pe.Pool[Instance[V]]
	all    []*Instance[V]
	done   func(*Instance[V])
	failed func(*Instance[V], error)
}

// Pool makes a pool of n instances. At the end of a run, done or failed is called on the
// engine's goroutine, inside Progress; the error is a *RunError. Pools are made in Idle.
// Errors match ErrInvalid and those of backend.NewPool.
func (g *Graph[V]) Pool(n int, done func(*Instance[V]), failed func(*Instance[V], error)) (*Pool[V], error) {
	if err := g.control.Owned("make a pool of instances"); err != nil {
		return nil, err
	}
	if done == nil || failed == nil {
		return nil, fmt.Errorf("graph: make a pool of instances of %q: %w: the function done or failed is nil", g.name, ErrInvalid)
	}
	p := &Pool[V]{graph: g, done: done, failed: failed}
	var err error
	p.tasks, err = backend.NewPool(g.control, "instances", n, taskOf[V], p.prepare, (*Instance[V]).clearValue)
	if err != nil {
		return nil, err
	}
	g.pools = append(g.pools, p)
	return p, nil
}

func taskOf[V any](i *Instance[V]) *pe.Task { return &i.Task }

// prepare makes the parts of an instance.
func (p *Pool[V]) prepare(i *Instance[V]) {
	nodes := p.graph.nodes
	i.control, i.pool = p.graph.control, p
	i.steps = make([]step, len(nodes))
	i.states = make([]nodeState, len(nodes))
	i.waitingFor = make([]int, len(nodes))
	for j, n := range nodes {
		i.steps[j] = n.step.make(i, j)
	}
	p.all = append(p.all, i)
}

// Alloc takes an instance out of the pool, and sets its value. Its errors are those of
// pe.Pool.Alloc.
func (p *Pool[V]) Alloc(value V) (*Instance[V], error) {
	i, err := p.tasks.Alloc()
	if err != nil {
		return nil, err
	}
	i.value = value
	return i, nil
}

// Cap is the number of instances that the pool was made with.
func (p *Pool[V]) Cap() int { return p.tasks.Cap() }

// Available is the number of instances that can be allocated now.
func (p *Pool[V]) Available() int { return p.tasks.Available() }
