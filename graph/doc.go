// Package graph runs tasks and functions in the order of their dependencies.
//
// A graph has nodes and edges. A node is a task of any context, or a function; an
// edge from one node to another has the second wait for the success of the first.
// It is built once, and run as often as one likes, on a value that all functions
// of one run are given:
//
//	b := graph.NewBuilder[*job]("copy")
//	in := graph.Task(b, "read", func(j *job) (*rdma.ReadTask, error) {
//		return reads.Alloc(j.conn, bufs.Source(j.remote, 0, j.n), bufs.Target(j.local, 0, j.n))
//	}, nil)
//	check := b.Func("check", func(j *job) error { return j.verify() })
//	b.Edge(in, check)
//	g, err := b.Build()
//	pool, err := g.Pool(8, done, failed)
//	err = engine.Connect(g)
//	err = g.Start()
//	run, err := pool.Alloc(&job{...})
//	err = run.Submit()
//
// Pools that nodes take tasks from are made with pe.Done and pe.Failed:
// r.ReadPool(8, pe.Done, pe.Failed). All contexts are on the engine of the graph.
//
// A graph is a context (package pe) and its instances are tasks: they have the
// states, the pools, the errors and the life of all others. So an instance can be
// a node of another graph, and its pool made with pe.Done and pe.Failed.
//
// # Order
//
// A node is begun when all nodes that it depends on have succeeded. What does not
// depend on one another is in flight at the same time; among nodes that could be
// begun the order is not defined. The effects of a task are as its package says:
// memory is the program's in collect, and in the nodes that depend on it.
//
// # Errors
//
// A node fails with the error of its task or of one of its functions. What depends
// on it, at any distance, is not run; what does not goes on. In the end the failed
// callback gets a [RunError], which has a [NodeError] for each node that failed,
// and names those that were not run. A panic in a function passes through, as that
// of any callback does; the node counts as failed ([ErrPanicked]).
//
// # Stopping
//
// When the graph is stopped, nodes not begun are not run, and those that wait for
// a task of an exhausted pool do not either. Tasks in flight are waited for: they
// go on in their own contexts, which are to be stopped after the graph, or with
// it. An instance of which nodes were left out comes back through the failed
// callback, with an error that matches [ErrFlushed]. The graph is Idle when its
// instances have been freed.
//
// # Goroutines
//
// Graph, pools and instances belong to the goroutine that drives the engine, and
// all functions of nodes run on it, one at a time. Builders are for one goroutine.
// A run allocates nothing but what its functions do, and what errors need.
package graph
