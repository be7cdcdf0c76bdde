package sample

import "github.com/verbena-rdma/verbena/oob"

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

// expects is what the peer has to offer, exactly.
func (m Memory) expects() *oob.Expect {
	switch m {
	case ImportsMemory:
		return &oob.Expect{Maps: 1}
	case ImportsEvent:
		return &oob.Expect{Events: 1}
	}
	return &oob.Expect{}
}

// String says what the descriptor is of.
func (m Memory) String() string {
	if m == ExportsEvent || m == ImportsEvent {
		return "sync event"
	}
	return "memory"
}
