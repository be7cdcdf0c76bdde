// Package pe is the progress engine: it drives contexts through their states
// and runs the callbacks of their tasks.
//
// # Terms
//
// A context is an object that works asynchronously, such as an RDMA context
// (package rdma). A task is one piece of work for it, taken from a pool and
// submitted; its callback runs when it has completed. An engine drives the
// contexts connected to it: nothing happens, and no callback runs, unless
// somebody calls [Engine.Progress] or [Engine.Run].
//
// # A program
//
// Make an engine with [New], and contexts on it with their own packages (Engine in
// their Config; [Engine.Connect] connects a context later); create pools, set
// callbacks; start the contexts ([Core.Start]), and call Run. Callbacks do the rest:
// they allocate and submit tasks, free them, and stop the context at the end. Run
// returns when every context is Idle again, with what failed. Then close the contexts
// and the engine.
//
// # States
//
// Every context is in one of four states, and goes through them in this order,
// as often as it is started; Starting may be left out, or be left for Stopping.
//
//	Idle ──Start──▶ Starting ──▶ Running ──Stop or Fail──▶ Stopping ──▶ Idle
//
//	call                        Idle      Starting   Running   Stopping
//	Engine.Connect              yes       –          –         –
//	NewPool, configuration      yes       –          –         –
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
//	(5) where the kind of context allows it (Pool.AllowStarting), as package rdma does
//
// A call in the wrong state changes nothing and returns a [StateError], which
// names the context, its state, and the states in which the call is legal, and carries
// the error that the context has failed with, if it has. Start
// fails with [ErrNotConnected] before Connect.
//
// [Core.State] changes at once; the callback set with [Core.OnStateChange] is
// queued and runs inside Progress, once for every change, in order. So in a
// callback that reports Stopping, State may say Idle already.
//
// Stopping lasts until the tasks in flight have come back through their error
// callbacks and every task has been freed, those never submitted included. If a
// context stays in Stopping, [Core.Allocated] says how many are missing; Run
// says so in the log, and returns [ErrTasksHeld] rather than hang when its
// context.Context has ended. A context in Idle can be started again.
//
// # Errors
//
// A callback has nobody to return an error to. It gives it to [Core.Fail], which
// keeps the first error since Start and stops the context; a context that cannot go
// on fails in the same way by itself. Run returns the errors of all contexts, so that
// a program can end with
//
//	return engine.Run(ctx)
//
// Where Progress drives the engine, [Core.Err] has the error of each context.
//
// # Closing
//
// Contexts and engines can be closed in any state and in any order, as deferred calls
// do after an early return. [Core.Close] stops a context that is not Idle, and
// [Engine.Close] all of them; both drive the engine until they are Idle, callbacks
// included, for [CloseTimeout] at most. Tasks that nobody has freed are taken back,
// and what they hold is dropped; to free one later fails with [ErrFreed]. A callback
// cannot wait for the engine that runs it ([ErrReentrant]): there, a context can be
// closed in Idle only, for example when Idle is reported.
//
// # Tasks
//
// [Pool.Alloc] gives a task to the user, submission to the context, the callback
// back to the user. In its callback, or whenever it is not in flight, a task may
// be changed, submitted again, kept or freed. If submission fails, it remains
// the user's. Nothing is allocated in memory after the pool was made: a pool of
// n tasks allows n at a time, and the next Alloc fails with [ErrExhausted]; a
// [Waiter] is called when it is worth another try.
//
// A pool has one callback for all of its tasks. Where each is to have its own, the
// pool is made with [Done] and [Failed], and the tasks are submitted with [Submit].
//
// [Aggregate] and [OptimizeReports] trade delay for throughput; neither can make
// a task wait for ever.
//
// # Goroutines
//
// An engine belongs to one goroutine at a time: the one that is inside Progress
// or Run, or is about to call it. All callbacks run on it, one at a time, never
// inside one another. Contexts, tasks and pools belong to it too. The exceptions,
// for use from any goroutine: [Engine.Do], which has a function run on the
// engine's goroutine, [Engine.Done], [Engine.MayBlock], [Core.State], [Core.Name], [Core.Engine]
// and [Control.Wake].
//
//	go func() {
//		<-interrupted
//		_ = engine.Do(func() { _ = c.Stop() })
//	}()
//
// Callbacks may do anything but drive or close the engine ([ErrReentrant]): they
// may connect, start and stop contexts, and close those that are Idle, also the one
// that calls back. They should not block, since everything waits for them. Driving
// the engine, and starting, stopping, connecting and closing contexts, while another
// goroutine is driving it gives [ErrBusy]. Calls on tasks and pools give it too in
// programs built with the race detector; elsewhere they do not look, since it takes time.
//
// # Waiting
//
// There are three ways to drive an engine.
//
// Run spins for a short while when there is nothing to do, and then sleeps
// without using the processor until something happens.
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
// Arm looks for work that is there already, and the descriptor is readable at
// once if there is some, so no order of events can lose one. Progress may be
// called at any time, after Arm too, and always handles everything. Tasks that are
// merely in flight do not make the descriptor readable.
//
// # A context of one's own
//
// Anything with work that completes later can be driven by the same engine:
// timers, files, accelerators. Write the work as a [Backend]. [NewCore] makes the two
// halves of the context: the type that users see embeds the [*Core], and its maker
// keeps the [*Control], which moves the context and its tasks. If there are tasks,
// embed a [Task] in each kind and take them from a [Pool]. Submission calls
// [Control.Begin], posts, and calls [Control.Abort] if that fails; the backend's
// Progress calls [Control.End] and then the callback. The example of Backend does all
// of it.
package pe
