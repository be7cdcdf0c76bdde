package bufinv

import (
	"fmt"

	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/mmap"
)

// Source is Inventory.Source with the inventory that the Map has itself, which grows, and
// lasts as long as the Map. Such Bufs are like all others: Free gives them back, or Free of
// the task that has them, and Map.Close fails while some are in use.
func Source(m *mmap.Map, off, n int) *Buf {
	if m == nil {
		return errNoMap
	}
	return mapInventory(m).Source(m, off, n)
}

// Target is Inventory.Target with the inventory of the Map, as Source is.
func Target(m *mmap.Map, off, n int) *Buf {
	if m == nil {
		return errNoMap
	}
	return mapInventory(m).Target(m, off, n)
}

var errNoMap = errorBuf(fmt.Errorf("take buffer: %w: no memory map is given", ErrInvalid))

// mapInventory is the inventory of a Map.
func mapInventory(m *mmap.Map) *Inventory {
	i, _ := m.Friends(friend.Package{}).Inventory(newMapInventory).(*Inventory)
	return i
}

func newMapInventory() any { return &Inventory{s: store{mapInventory: true}} }
