// Package await waits for tasks, states and messages, instead of callbacks: any goroutine runs
// tasks, one statement after the other, while another goroutine drives the engine (package
// pe).
//
//	go await.Run(ctx, engine)
//	err := await.Start(ctx, r) // until it is Running
//	err = await.Write(ctx, conn, bufinv.Source(local, 0, n), bufinv.Target(remote, 0, n))
//	for msg, err := range receiver.Messages(ctx) { ... }
//
// [Send], [Read], [Write] and the others run one operation on a connection, or with a peer of
// a context of datagrams; the program needs no pool for them. [Task] runs a task of any pool, and
// [Post] submits one without waiting for it.
// [Func] runs a function on the engine's goroutine, for everything else that belongs there,
// such as exporting, connecting and making peers. [State], [Start] and [Stop] wait for states,
// a [Receiver] for messages. The package is built on the callbacks of pe and rdma, and one
// program can use both. Pools made with pe.TaskDone and pe.TaskFailed serve both, and also graphs
// (package graph), whose instances are tasks too.
//
// # Giving up
//
// Every wait takes a context.Context. When that ends, the wait fails with an error that
// matches its cause (context.Cause). What becomes of the operation:
//
//   - A function or a task that was not begun yet is never begun.
//   - A task that the device has cannot be taken back. The error is a *[Pending]. The task
//     goes on, and takes effect or fails as if the caller still waited. Until it has
//     completed, its memory must not be touched: inventories and pools do not hand its buffers
//     out, and mmap.Map.Close refuses. Then the task is freed. Pending reports when, and with
//     what outcome.
//   - A context goes on starting or stopping.
//   - Messages that were not delivered are kept for the next iteration.
//
// To end a task rather than the wait for it, close its connection or stop its
// context: the wait then ends with the error of the task.
//
// # Reasons
//
// When a connection or a context ends, every call that waits on it, and every later one, fails
// with an error that matches the first reason (errors.Is), such as rdma.ErrRetryExceeded or
// the error given to pe.Core.Fail. It also matches the outcome of the call: rdma.ErrFlushed,
// rdma.ErrNotReady or pe.ErrBadState.
//
// # Driving the engine
//
// Another goroutine has to drive the engine: with pe.Engine.Run, which returns when all
// contexts are Idle, or with [Run], which goes on then. If no goroutine does, waits last until
// their context.Context ends. A wait inside a callback would block the goroutine that has to
// end it, so it fails with pe.ErrReentrant. On an engine that is closed, waits fail with
// pe.ErrClosed.
//
// While the engine sleeps, calls submit on the caller's goroutine, and callbacks that are due then
// run on it too (pe.Engine.Dispatch). So do not call this package with a lock held that a callback
// takes.
//
// A wait costs up to two changes of goroutine and a few small allocations more than a callback.
// Where that matters, use callbacks for frequent operations.
package await
