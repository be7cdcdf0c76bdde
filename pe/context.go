package pe

// Context is what an Engine drives. A type becomes one by embedding a *Core.
type Context interface {
	core() *Core
}

// Backend is what a kind of context implements: the work behind the states. Its
// methods are best put on an unexported type of their own: on the type that
// embeds the Core, its Start and Stop would hide those of the Core.
//
// The engine calls all methods on the goroutine that drives it (Start also from
// Core.Start, Stop and Idle also from Core.Stop and Pool.Free, which belong to
// the same goroutine). Calls to one backend never nest: when a callback that
// runs inside Progress stops the context, Stop is called after Progress has
// returned.
type Backend interface {
	// Start acquires what running needs. It returns true if the context is
	// Running at once, and false if it is Starting until Control.Started is called.
	// After an error the context stays Idle, and Start must have released what
	// it had acquired. It must not block or run callbacks.
	Start() (running bool, err error)

	// Progress does a bounded amount of work and returns how many completions
	// and other events it handled. It posts work that was held back with
	// Aggregate, and runs the callbacks of completed tasks, after Control.End. It
	// is called once in every pass of the engine while the context is Starting,
	// Running or Stopping.
	Progress() int

	// Arm is called when the engine is about to sleep: arrange for Control.Wake to
	// be called when there is something to do. It returns false, having armed
	// nothing, if there is something to do already: completions not handled,
	// reports held back, work not posted. It may be called again while armed.
	Arm() (armed bool)

	// Stop is called once after the context entered Stopping, by Core.Stop or by
	// Core.Fail. It ends everything in flight: the tasks come back through their
	// error callbacks in later calls of Progress, not inside Stop. When no work
	// is left at the device, Control.Stopped is to be called, inside Stop or later.
	Stop()

	// Idle releases what Start acquired. It is called once Control.Stopped was
	// called and no task of the context's pools is allocated; the context
	// becomes Idle when it returns.
	Idle()
}
