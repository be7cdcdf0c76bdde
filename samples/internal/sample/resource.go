package sample

import "github.com/verbena-rdma/verbena/descriptor"

// Memory says which way the descriptor of a memory map or of a sync event goes,
// if any.
type Memory int

// The ways of a memory descriptor, and of a sync event's.
const (
	NoMemory Memory = iota
	ExportsMemory
	ImportsMemory
	ExportsEvent
	ImportsEvent
)

func (m Memory) imports() bool { return m == ImportsMemory || m == ImportsEvent }

func (m Memory) ofEvent() bool { return m == ExportsEvent || m == ImportsEvent }

func (m Memory) kind() descriptor.Kind {
	if m.ofEvent() {
		return descriptor.SyncEvent
	}
	return descriptor.MemoryMap
}

// String says what the descriptor is of.
func (m Memory) String() string {
	if m.ofEvent() {
		return "sync event"
	}
	return "memory"
}

// resource is the descriptor beside those of connections.
func (d *Descriptors) resource(m Memory) *[]byte {
	if m.ofEvent() {
		return &d.Event
	}
	return &d.Memory
}
