// Package limits finds out how many connections a stack can have on a device, and how much receive
// memory.
package limits

import (
	"cmp"
	"fmt"

	"github.com/verbena-rdma/verbena/internal/errs"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	// An adapter allocates the completion queue as a whole.
	standardOnAdapters = 1024
	standard           = 16384
	standardMemory     = 1 << 30
)

// Needs is what one connection needs.
type Needs struct {
	Completions int // entries of the completion queue
	Memory      int // receive memory to begin with, in bytes
}

// Complete replaces the numbers that are zero by the standard ones for the device, and checks the
// others.
func (n Needs) Complete(dev verbs.Device, connections, memory *int) error {
	room, err := n.room(dev)
	if err != nil {
		return err
	}
	usual := standard
	if dev.Driver() != "soft" {
		usual = standardOnAdapters
	}
	if usual = min(usual, room); *memory > 0 {
		usual = min(usual, max(*memory/(2*n.Memory), 1)) // the other half is for growth
	}
	*connections = cmp.Or(*connections, usual)
	if *connections < 1 || *connections > room {
		return fmt.Errorf("%w: MaxConnections is %d, but the device has room for %d", errs.ErrRange, *connections, room)
	}
	*memory = cmp.Or(*memory, standardMemory)
	if *memory < n.Memory**connections {
		return fmt.Errorf("%w: ReceiveMemory is %d bytes, but %d connections need %d bytes each; raise it, or lower MaxConnections",
			errs.ErrRange, *memory, *connections, n.Memory)
	}
	return nil
}

// room is how many connections the device has room for.
func (n Needs) room(dev verbs.Device) (int, error) {
	caps, err := rdma.QueryCapabilities(dev, verbs.RC)
	if err != nil {
		return 0, err
	}
	if !caps.ByAddress {
		return 0, fmt.Errorf("%w: %s has no connection manager", errs.ErrNotSupported, dev.Name())
	}
	attr, err := dev.Query()
	if err != nil {
		return 0, err
	}
	return min(caps.MaxConnections, (attr.MaxCQE-rdma.SharedTasks)/n.Completions), nil
}
