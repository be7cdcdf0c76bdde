package pe

// Context is an object that an Engine drives. A type becomes one by embedding a *Core.
type Context interface {
	Name() string                                 // see Core.Name
	Engine() *Engine                              // see Core.Engine
	State() State                                 // see Core.State
	Err() error                                   // see Core.Err
	Start() error                                 // see Core.Start
	Stop() error                                  // see Core.Stop
	StopWhenDone() error                          // see Core.StopWhenDone
	Fail(err error)                               // see Core.Fail
	Close() error                                 // see Core.Close
	InFlight() int                                // see Core.InFlight
	Allocated() int                               // see Core.Allocated
	OnStateChange(f func(prev, next State))       // see Core.OnStateChange
	Watch(f func(prev, next State)) (stop func()) // see Core.Watch
	core() *Core
}

// backend is backend.Backend, which describes the methods.
type backend interface {
	Start() (running bool, err error)
	Progress() int
	Arm() (armed bool)
	Stop()
	Idle()
}
