package pe

// Context is an object that an Engine drives. A type becomes one by embedding a *Core.
type Context interface {
	core() *Core
}

// Backend is implemented by each kind of context: it does the work, and the Core keeps the
// states. Implement it on an unexported type: on the type that embeds the Core, its Start and
// Stop would hide those of the Core.
//
// The engine calls all methods on the goroutine that drives it. Core.Start calls Start on that
// goroutine too, and Core.Stop and Pool.Free call Stop and Idle. Calls to one backend never
// nest: when a callback inside Progress stops the context, Stop is called after Progress has
// returned.
type Backend interface {
	// Start acquires what the context needs to run. It returns true if the context is Running
	// at once, and false if it is Starting until Control.Started is called. On an error it
	// releases what it acquired, and the context stays Idle. It must not block or run
	// callbacks.
	Start() (running bool, err error)

	// Progress does a bounded amount of work and returns the number of completions and other
	// events it handled. It posts work held back by Aggregate, and for each completed task
	// calls Control.End and then the callback. Each pass of the engine calls it once while the
	// context is Starting, Running or Stopping.
	Progress() int

	// Arm is called when the engine is about to sleep. It arranges a call of Control.Wake for
	// when there is something to do, and returns true. If there is something to do already
	// (completions not handled, reports held back, work not posted) it arms nothing and
	// returns false. It may be called again while armed.
	Arm() (armed bool)

	// Stop is called once after the context entered Stopping, by Core.Stop or Core.Fail. It
	// ends everything in flight: later calls of Progress, not Stop, return the tasks through
	// their error callbacks. When no work is left at the device, the backend calls
	// Control.Stopped, inside Stop or later.
	Stop()

	// Idle releases what Start acquired. It is called after Control.Stopped, when no task of
	// the context's pools is allocated. The context becomes Idle when it returns.
	Idle()
}
