// Package pe is the progress engine: it drives contexts through their states and runs the
// callbacks of their tasks.
//
// # Terms
//
// A context is an object that works asynchronously, such as an RDMA context (package rdma). A
// task is one piece of work for it, taken from a pool and submitted; its callback runs when it
// has completed. An engine drives the contexts connected to it: nothing happens, and no
// callback runs, unless the program calls [Engine.Progress] or [Engine.Run].
//
// # A program
//
// Make an engine with [New], and contexts on it with their own packages (Engine in their
// Config; [Engine.Connect] connects a context later). Create pools, set callbacks, start the
// contexts ([Core.Start]), and call Run. Callbacks do the rest: they allocate and submit
// tasks, free them, and stop the context at the end. Run returns the errors of contexts when
// every context is Idle again. Then close the contexts and the engine.
//
// # States
//
// Every context is in one of four states. Each start takes it through them in this order; it
// may skip Starting, or go from Starting straight to Stopping.
//
//	Idle ──Start──▶ Starting ──▶ Running ──Stop or Fail──▶ Stopping ──▶ Idle
//
//	call                        Idle      Starting   Running   Stopping
//	Engine.Connect              yes       –          –         –
//	pools, configuration        yes       –          –         –
//	Core.Start                  yes       –          –         –
//	Pool.Alloc, submission      –         (5)        yes       –
//	Pool.Free                   (1)       (5)        yes       yes
//	Core.Stop                   (2)       yes        yes       (2)
//	Core.Fail                   (3)       yes        yes       (3)
//	Core.Close, Engine.Close    yes       (4)        (4)       (4)
//
//	(1) no task is allocated in this state, so there is none to free
//	(2) does nothing, and succeeds
//	(3) keeps the error, if it is the first
//	(4) stops the context and drives the engine until it is Idle; not in callbacks
//	(5) where the kind of context allows it, as package rdma does
//
// A call in the wrong state changes nothing and returns a [StateError], which names the
// context, its state, and the states in which the call is legal. If the context has failed,
// the StateError also carries that error. Start fails with [ErrNotConnected] before Connect.
//
// [Core.State] changes at once. The callback set with [Core.OnStateChange] is queued and runs
// inside Progress, once for every change, in order. So in a callback that reports Stopping,
// State may already return Idle.
//
// Stopping lasts until the tasks in flight have come back through their error callbacks and
// every task has been freed, including tasks never submitted. If a context stays in Stopping,
// [Core.Allocated] is the number of tasks not freed. Run logs it, and when its context.Context
// has ended, returns [ErrTasksHeld] instead of hanging. A context in Idle can be started
// again.
//
// # Errors
//
// A callback cannot return an error. It passes the error to [Core.Fail], which keeps the first
// error since Start and stops the context. A context that cannot go on calls Fail itself. Run
// returns the errors of all contexts, so that a program can end with
//
//	return engine.Run(ctx)
//
// Where Progress drives the engine, [Core.Err] has the error of each context.
//
// # Closing
//
// Contexts and engines can be closed in any state and in any order, as deferred calls do after
// an early return. [Core.Close] stops a context that is not Idle, and [Engine.Close] all of
// them; both drive the engine until the contexts are Idle, callbacks included, for
// [CloseTimeout] at most. They take back tasks that were not freed, and drop what these hold;
// freeing such a task later fails with [ErrFreed]. A callback cannot wait for the engine that
// runs it ([ErrReentrant]): there, a context can be closed in Idle only, for example when Idle
// is reported.
//
// # Tasks
//
// [Pool.Alloc] gives a task to the user, submission gives it to the context, and the callback
// gives it back to the user. In its callback, or whenever it is not in flight, a task may be
// changed, submitted again, kept or freed. If submission fails, the task remains the user's. A
// pool allocates memory only when it is made: a pool of n tasks allows n at a time, and the
// next Alloc fails with [ErrExhausted]. A [Waiter] calls a function when a task can be
// allocated again.
//
// A pool has one callback for all of its tasks. To give each task its own callback, make the
// pool with [TaskDone] and [TaskFailed], and submit the tasks with [SubmitOrFree].
//
// [Aggregate] and [OptimizeReports] trade delay for throughput; neither can make a task wait
// for ever.
//
// # Goroutines
//
// An engine belongs to one goroutine at a time, which is inside Progress or Run, or
// about to call it. All callbacks run on it, one at a time, never inside one another.
// Contexts, tasks and pools belong to it too. Any goroutine may call [Engine.Do], which runs a
// function on the engine's goroutine, [Engine.Dispatch], [Engine.DriveUntil], [Engine.Done],
// [Core.State], [Core.Name] and [Core.Engine].
//
// While Run sleeps, [Engine.Dispatch] makes its caller the engine's goroutine for a short time: it
// runs a function at once, and the callbacks that are due then. [Engine.DriveUntil] does so until what
// its caller waits for has come. In a program that uses them, or package await, which uses Dispatch,
// callbacks run on any goroutine that calls them. They are still one
// at a time, and each sees what the ones before have written. Such calls must not be made with a
// lock held that a callback takes.
//
//	go func() {
//		<-interrupted
//		_ = engine.Do(func() { _ = c.Stop() })
//	}()
//
// Callbacks may do anything but drive or close the engine ([ErrReentrant]): they may connect,
// start and stop contexts, and close contexts that are Idle, including their own. They should
// not block, since they delay everything on the engine. Driving the engine, and starting,
// stopping, connecting and closing contexts, fails with [ErrBusy] while another goroutine is
// driving the engine. Calls on tasks and pools do so only in programs built with the race
// detector, since the check takes time.
//
// # Waiting
//
// There are three ways to drive an engine.
//
// Run spins for a short while when there is nothing to do, and then sleeps without using the
// processor until something happens.
//
// Progress in a loop of the program's own never sleeps, for the shortest delay.
//
// On Linux, a program with its own event loop waits for the descriptor of
// [Engine.NotificationFD] together with its others:
//
//	fd, err := engine.NotificationFD()
//	... add fd to the epoll set, for EPOLLIN ...
//	for {
//		for {
//			n, err := engine.Progress()
//			... check err ...
//			if n == 0 {
//				break
//			}
//		}
//		if engine.Active() == 0 {
//			break // every context is Idle
//		}
//		err = engine.Arm()
//		n, err := unix.EpollWait(ep, events, -1)
//	}
//
// Arm looks for work that is there already, and makes the descriptor readable at once if it
// finds some, so no event is lost, whatever the order. Progress may be called at any time,
// after Arm too, and always handles everything. Tasks that are merely in flight do not make
// the descriptor readable.
//
// # A context of one's own
//
// The same engine can drive anything with work that completes later: timers, files,
// accelerators. Package backend, below this one, is for those who write such a context.
package pe
