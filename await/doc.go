// Package await is for programs that would rather wait than be called back: it
// lets any goroutine run tasks, one statement after the other, while another
// goroutine drives the engine (package pe).
//
//	go await.Run(ctx, engine)
//	err := await.Start(ctx, r) // until it is Running
//	err = await.Task(ctx, engine, func() (*rdma.WriteTask, error) {
//		return writes.Alloc(conn, bufs.Source(local, 0, n), bufs.Target(remote, 0, n))
//	}, nil)
//	for msg, err := range receiver.Messages(ctx) { ... }
//
// [Task] runs a task, [Func] a function on the engine's goroutine, where everything
// else is done that belongs to it, such as exporting and connecting. [State],
// [Start] and [Stop] wait for states, a [Receiver] for messages. All of it is made
// of the callbacks of pe and rdma, and mixes with callbacks in one program: pools
// made with pe.Done and pe.Failed serve tasks of both kinds, and of graphs (package
// graph), whose instances are tasks too.
//
// # Giving up
//
// Every wait takes a context.Context, and its error matches the cause of that
// context's end. What becomes of the operation is as definite:
//
//   - A function, or a task, that was not begun yet never will be.
//   - A task that the device has cannot be taken back. The error is then a *[Pending]
//     too. The task goes on, and takes effect or fails as if the caller still waited.
//     Its buffers stay with it: inventories and pools do not hand them out, and
//     mmap.Map.Close refuses, until it has completed; then it is freed. Pending tells
//     when, and with what outcome. Until then the memory must not be touched.
//   - A context that was to start or stop goes on doing so.
//   - Messages that were not delivered wait for the next one who asks.
//
// To end a task itself rather than a wait, close its connection, or stop its
// context: its waits then end with its error.
//
// # Who drives
//
// Waiting needs somebody to drive the engine: its own Run, which returns when all
// contexts are Idle, or [Run], which does not. If nobody does, waits last until
// their context.Context ends. Waiting inside a callback would be waiting for
// oneself, and fails with pe.ErrReentrant. On an engine that is closed, waits fail
// with pe.ErrClosed.
//
// A wait costs two changes of goroutine and a few small allocations more than a
// callback. Where that matters, use callbacks for what is frequent.
package await
