package bufinv

import (
	"fmt"

	"github.com/verbena-rdma/verbena/internal/sibling"
	"github.com/verbena-rdma/verbena/mmap"
)

// Source is Inventory.Source with the inventory that the Map has itself, which grows, and
// lasts as long as the Map. Such Bufs are like all others: Free gives them back, or Free of
// the task that has them, and Map.Close fails while some are in use.
func Source(m *mmap.Map, off, n int) *Buf {
	if m == nil {
		return errNoMap
	}
	return ofMap(m).Source(m, off, n)
}

// Target is Inventory.Target with the inventory of the Map, as Source is.
func Target(m *mmap.Map, off, n int) *Buf {
	if m == nil {
		return errNoMap
	}
	return ofMap(m).Target(m, off, n)
}

var errNoMap = failed(fmt.Errorf("take buffer: %w: no memory map is given", ErrInvalid))

// ofMap is the inventory of a Map.
func ofMap(m *mmap.Map) *Inventory {
	i, _ := m.Siblings(sibling.Pass{}).Stock(newOfMap).(*Inventory)
	return i
}

func newOfMap() any { return &Inventory{s: store{ofMap: true}} }
