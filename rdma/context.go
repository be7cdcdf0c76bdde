package rdma

import (
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/verbs"
)

// Context is a context of either kind, *Connections or *Datagrams, for code that serves both.
type Context interface {
	pe.Context

	// These are of pe.Core.

	Name() string
	Engine() *pe.Engine
	State() pe.State
	Err() error
	Start() error
	Stop() error
	StopWhenDone() error
	Close() error
	InFlight() int
	Allocated() int
	Fail(err error)
	OnStateChange(f func(prev, next pe.State))
	Watch(f func(prev, next pe.State)) (stop func())

	// These are the same for both kinds: see the methods of Connections.

	Device() verbs.Device
	PD() verbs.PD
	GID() verbs.GIDEntry
	Capabilities() Capabilities
	Listen(addr string, cfg ListenConfig) (*Listener, error)
	Receive(n, size int, f func(*Message)) error
	ReceivePool(n int, done func(*ReceiveTask), failed func(*ReceiveTask, error)) (*ReceivePool, error)
	Flush()
}

var (
	_ Context = (*Connections)(nil)
	_ Context = (*Datagrams)(nil)
)
