package sample

import "github.com/verbena-rdma/verbena/oob"

// Memory says whether the program exports or imports the descriptor of a memory map, or that
// of a sync event.
type Memory int

// The directions of the descriptor of a memory map, and of a sync event.
const (
	NoMemory Memory = iota
	ExportsMemory
	ImportsMemory
	ExportsEvent
	ImportsEvent
)

func (m Memory) imports() bool { return m == ImportsMemory || m == ImportsEvent }

// expects returns what the peer has to offer, and nothing else.
func (m Memory) expects() *oob.Expect {
	switch m {
	case ImportsMemory:
		return &oob.Expect{Maps: 1}
	case ImportsEvent:
		return &oob.Expect{Events: 1}
	}
	return &oob.Expect{}
}

// String names the object that the descriptor is of.
func (m Memory) String() string {
	if m == ExportsEvent || m == ImportsEvent {
		return "sync event"
	}
	return "memory"
}
