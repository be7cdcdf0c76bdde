package rdma

import (
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/verbs"
)

// Context is a context of either kind, *Connections or *Datagrams, for code that serves both.
type Context interface {
	pe.Context

	// Name is Config.Name. It and the other methods up to Watch are those of pe.Core.
	Name() string
	// Engine is the engine that drives the context, or nil.
	Engine() *pe.Engine
	// State is the present state.
	State() pe.State
	// Err is the first error that ended the context.
	Err() error
	// Start takes the context from Idle to Starting.
	Start() error
	// Stop ends the context.
	Stop() error
	// StopWhenDone stops the context when no task is in flight.
	StopWhenDone() error
	// Close gives the context back to its engine and device.
	Close() error
	// InFlight is the number of tasks that were submitted and have not come back.
	InFlight() int
	// Allocated is the number of tasks that are out of their pools.
	Allocated() int
	// Fail stops the context with an error; nil does nothing.
	Fail(err error)
	// OnStateChange sets the function that is called for each change of the state.
	OnStateChange(f func(prev, next pe.State))
	// Watch adds a function that is called after that of OnStateChange.
	Watch(f func(prev, next pe.State)) (stop func())

	// Device is the device that the context was made on.
	Device() verbs.Device
	// PD is the protection domain of everything in the context.
	PD() verbs.PD
	// GID is the entry of the GID table that is the context's address at present.
	GID() verbs.GIDEntry
	// Capabilities is what the context could do at most on its device.
	Capabilities() Capabilities
	// Listen answers peers that dial an address: see Connections.Listen.
	Listen(addr string, cfg ListenConfig) (*Listener, error)
	// Receive takes messages with one function: see Connections.Receive.
	Receive(n, size int, f func(*Message)) error
	// ReceivePool makes a pool of receives: see Connections.ReceivePool.
	ReceivePool(n int, done func(*ReceiveTask), failed func(*ReceiveTask, error)) (*ReceivePool, error)
	// Flush gives the device the tasks that pe.Aggregate has made wait.
	Flush()
}

var (
	_ Context = (*Connections)(nil)
	_ Context = (*Datagrams)(nil)
)
