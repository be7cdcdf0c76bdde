package rdma

import (
	"strconv"

	"github.com/verbena-rdma/verbena/verbs"
)

// Operation is a kind of task.
type Operation int

// The operations.
const (
	OpReceive Operation = iota
	OpSend
	OpSendImm
	OpRead
	OpWrite
	OpWriteImm
	OpCompareSwap
	OpFetchAdd
)

var operations = [...]struct {
	name   string
	submit string // for errors; made in advance for the hot path
	verb   verbs.Opcode
}{
	OpReceive:     {"receive", "submit a receive", 0},
	OpSend:        {"send", "submit a send", verbs.OpSend},
	OpSendImm:     {"send with immediate", "submit a send with immediate", verbs.OpSendImm},
	OpRead:        {"read", "submit a read", verbs.OpRead},
	OpWrite:       {"write", "submit a write", verbs.OpWrite},
	OpWriteImm:    {"write with immediate", "submit a write with immediate", verbs.OpWriteImm},
	OpCompareSwap: {"compare-and-swap", "submit a compare-and-swap", verbs.OpCompareSwap},
	OpFetchAdd:    {"fetch-and-add", "submit a fetch-and-add", verbs.OpFetchAdd},
}

// String names the operation.
func (o Operation) String() string {
	if o.known() {
		return operations[o].name
	}
	return "operation " + strconv.Itoa(int(o))
}

func (o Operation) known() bool { return o >= 0 && int(o) < len(operations) }

func (o Operation) atomic() bool { return o == OpCompareSwap || o == OpFetchAdd }

// answered reports whether the peer answers with data, which the device limits
// by reads and atomics outstanding.
func (o Operation) answered() bool { return o == OpRead || o.atomic() }
