package pe

// Context is an object that an Engine drives. A type becomes one by embedding a *Core.
type Context interface {
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
