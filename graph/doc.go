// Package graph runs tasks and functions in the order of their dependencies.
//
// A graph has nodes and edges. A node is a task of any context, or a function; an edge from
// one node to another makes the second wait for the success of the first. A graph is built
// once and run any number of times, also several times at once. Each run has a value of the
// program's, which the graph passes to all of its functions:
//
//	b := graph.NewBuilder[*job]("copy")
//	in := graph.Task(b, "read", func(j *job) (*rdma.Task, error) {
//		return reads.Read(j.conn, bufs.Source(j.remote, 0, j.n), bufs.Target(j.local, 0, j.n))
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
// Pools that nodes take tasks from are made with pe.TaskDone and pe.TaskFailed: r.Pool(8, pe.TaskDone,
// pe.TaskFailed). All contexts must be on the engine of the graph.
//
// A graph is a context and its instances are tasks (package pe), with the states, pools and
// errors of all others. So an instance can be a node of another graph, if its pool is made
// with pe.TaskDone and pe.TaskFailed.
//
// # Order
//
// A node begins when all nodes that it depends on have succeeded. Nodes that do not depend on
// one another are in flight at the same time, and begin in no defined order. The memory of a
// task is the program's again in its collect function, and in the nodes that depend on it.
//
// # Errors
//
// A node fails with the error of its task or of one of its functions. The nodes that depend on
// it, directly or not, are not run; the others go on. At the end the failed callback gets a
// [RunError], which has a [NodeError] for each node that failed and the names of the nodes
// that were not run. A panic in a function passes through Progress, as in any callback; the
// node counts as failed ([ErrPanicked]).
//
// # Stopping
//
// When the graph is stopped, nodes that have not begun are not run, including those that wait
// for a task of an exhausted pool. Tasks in flight go on in their own contexts, and the graph
// waits for them; stop those contexts after the graph, or together with it. An instance with
// nodes that were not run comes back through the failed callback, with an error that matches
// [ErrFlushed]. The graph is Idle when its instances have been freed.
//
// # Goroutines
//
// Graphs, pools and instances belong to the goroutine that drives the engine, and all
// functions of nodes run on it, one at a time. A run allocates nothing beyond what its
// functions and errors do.
package graph
