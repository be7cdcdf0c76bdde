// Package limits finds out how many connections a stack can have on a device, and how much memory.
package limits

import (
	"cmp"
	"fmt"
	"sort"

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
	Memory      []Memory
}

// Memory is memory that connections share.
type Memory struct {
	Name  string                    // of the setting
	Bytes *int                      // the setting
	For   func(connections int) int // what so many need to begin with
}

// Complete replaces the numbers that are zero by the standard ones for the device, and checks the
// others.
func (n Needs) Complete(dev verbs.Device, connections *int) error {
	room, err := n.room(dev)
	if err != nil {
		return err
	}
	usual := standard
	if dev.Driver() != "soft" {
		usual = standardOnAdapters
	}
	usual = min(usual, room)
	for _, m := range n.Memory {
		if half := *m.Bytes / 2; half > 0 { // the other half is for growth
			usual = max(sort.Search(usual, func(fewer int) bool { return m.For(fewer+1) > half }), 1)
		}
	}
	*connections = cmp.Or(*connections, usual)
	if *connections < 1 || *connections > room {
		return fmt.Errorf("%w: MaxConnections is %d, but the device has room for %d", errs.ErrRange, *connections, room)
	}
	for _, m := range n.Memory {
		*m.Bytes = cmp.Or(*m.Bytes, standardMemory)
		if need := m.For(*connections); *m.Bytes < need {
			return fmt.Errorf("%w: %s is %d bytes, but %d connections need %d; raise it, or lower MaxConnections",
				errs.ErrRange, m.Name, *m.Bytes, *connections, need)
		}
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
	return min(caps.MaxConnections, attr.MaxCQE/n.Completions), nil
}
