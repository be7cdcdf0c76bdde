package rdma

import (
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/verbs"
)

// Context is a context of either kind, *Connections or *Datagrams, for code that serves both.
type Context interface {
	pe.Context

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
